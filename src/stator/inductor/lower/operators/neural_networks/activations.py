"""Lowerings of activation functions and their gradients: the formulas of `prims/special/activations.py` in loop bodies.
Activations without a lowering are decomposed before."""

from __future__ import annotations

from typing import Any

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.operators.pointwise import elementwise
from stator.inductor.lower.operators.special import FUNCTIONS, ScalarFormula
from stator.inductor.lower.registry import lowerings
from stator.inductor.lower.tensor import Tensor
from stator.prims.shape_rules.operands import overloads
from stator.prims.special.activations import activations
from stator.prims.type_promotion import is_integral

_LIGHT = """
    relu6 hardtanh hardsigmoid hardswish leaky_relu threshold
    threshold_backward sigmoid_backward tanh_backward hardsigmoid_backward hardswish_backward hardtanh_backward
    leaky_relu_backward
"""
_HEAVY = "silu gelu elu softplus mish gelu_backward silu_backward softplus_backward"


def _register(name: str, heavy: bool) -> None:
    formula = activations[name].formula

    def lowering(builder: LoweringBuilder, *args: Any, **named: Any) -> Any:
        tensors = [one for one in args if isinstance(one, Tensor)]  # they come first
        if any(is_integral(tensor.dtype) for tensor in tensors):
            return NotImplemented

        def function(ops: Any, *values: Ref) -> Ref:
            scalars = [ScalarFormula(ops, value) for value in values]
            return formula(FUNCTIONS, *scalars, *args[len(tensors) :], **named).ref  # type: ignore[no-any-return]

        return elementwise(builder, function, tensors, heavy=heavy, dtype=builder.meta.dtype)

    (target,) = overloads(name)
    lowerings.add(target, lowering)


for _name in _LIGHT.split():
    _register(_name, heavy=False)
for _name in _HEAVY.split():
    _register(_name, heavy=True)
