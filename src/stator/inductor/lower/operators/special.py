"""Lowerings of special functions: evaluates the formulas of `prims/special/special_functions.py` in loop bodies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.registry import lowerings, lowers
from stator.inductor.lower.tensor import Tensor
from stator.prims.shape_rules.operands import overloads
from stator.prims.special.special_functions import POLYGAMMA, binary_formulas, unary_formulas
from stator.prims.type_promotion import Kind

from .pointwise import Operand, elementwise, vocabulary_operation

aten = torch.ops.aten


class ScalarFormula:
    """A value of a loop body that overloads arithmetic. A number takes the dtype of the other operand."""

    __slots__ = ("ops", "ref")

    def __init__(self, ops: Any, ref: Ref) -> None:
        self.ops, self.ref = ops, ref

    def __neg__(self) -> ScalarFormula:
        return ScalarFormula(self.ops, self.ops.neg(self.ref))

    def lifted(self, other: Any) -> Ref:
        return other.ref if isinstance(other, ScalarFormula) else self.ops.constant(other, self.ops.dtype(self.ref))


def _operator(operation: str, reflected: bool = False) -> Callable[[ScalarFormula, Any], ScalarFormula]:
    def apply(self: ScalarFormula, other: Any) -> ScalarFormula:
        pair = (self.lifted(other), self.ref) if reflected else (self.ref, self.lifted(other))
        return ScalarFormula(self.ops, self.ops.elementwise(operation, *pair))

    return apply


for _name, _operation in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div")):
    setattr(ScalarFormula, f"__{_name}__", _operator(_operation))
    setattr(ScalarFormula, f"__r{_name}__", _operator(_operation, reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(ScalarFormula, f"__{_name}__", _operator(_name))
for _name, _operation in (("and", "bitwise_and"), ("or", "bitwise_or")):
    setattr(ScalarFormula, f"__{_name}__", _operator(_operation))


class LoopFunctions:
    """The elementary functions in formulas, named as in the vocabulary of loops."""

    def __getattr__(self, name: str) -> Callable[..., ScalarFormula]:
        def call(first: ScalarFormula, *others: Any) -> ScalarFormula:
            return ScalarFormula(first.ops, first.ops.elementwise(name, first.ref, *map(first.lifted, others)))

        return call

    @staticmethod
    def where(condition: ScalarFormula, x: Any, y: Any, like: ScalarFormula | None = None) -> ScalarFormula:
        known = next(value for value in (x, y, like) if isinstance(value, ScalarFormula))
        return ScalarFormula(known.ops, known.ops.where(condition.ref, known.lifted(x), known.lifted(y)))

    @staticmethod
    def clamp(x: ScalarFormula, low: float, high: float) -> ScalarFormula:
        """Between equal zeros this takes the second operand, the value's own sign, as in eager."""
        return ScalarFormula(x.ops, x.ops.minimum(x.lifted(high), x.ops.maximum(x.lifted(low), x.ref)))


FUNCTIONS = LoopFunctions()


def formula_of_loops(formula: Callable[..., ScalarFormula]) -> Callable[..., Ref]:
    """Turn a formula into a function of the handler and of loop values, for `elementwise`."""

    def function(ops: Any, *values: Ref) -> Ref:
        return formula(FUNCTIONS, *[ScalarFormula(ops, value) for value in values]).ref

    return function


# Overloads that take a number in place of one tensor
_VARIANTS = ("", ".self_scalar", ".other_scalar")
_POLYNOMIAL_VARIANTS = ("", ".x_scalar", ".n_scalar")


def _register(name: str, formula: Callable[..., ScalarFormula], variants: Sequence[str]) -> None:
    function = formula_of_loops(formula)

    def lowering(builder: LoweringBuilder, *operands: Operand) -> Tensor:
        return elementwise(builder, function, operands, Kind.INT_TO_FLOAT, heavy=True)

    for target in overloads(" ".join(name + variant for variant in variants)):
        lowerings.add(target, lowering)


for _name in unary_formulas:
    _register(_name, unary_formulas[_name], ("",))
for _name in binary_formulas:
    _register(_name, binary_formulas[_name], _POLYNOMIAL_VARIANTS if "polynomial" in _name else _VARIANTS)


# ---- operations that contain loops, which only CPU kernels have


def _on_cpu(operands: Sequence[Operand]) -> bool:
    return all(operand.device.type == "cpu" for operand in operands if isinstance(operand, Tensor))


def _register_iterative(name: str, operation: str, variants: Sequence[str]) -> None:
    def lowering(builder: LoweringBuilder, *operands: Operand) -> Any:
        if not _on_cpu(operands):
            return NotImplemented
        return elementwise(builder, vocabulary_operation(operation), operands, Kind.INT_TO_FLOAT, heavy=True)

    for target in overloads(" ".join(name + variant for variant in variants)):
        lowerings.add(target, lowering)


_register_iterative("special_zeta", "zeta", _VARIANTS)
for _name in ("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"):
    _register_iterative(f"special_{_name}", _name.replace("polynomial_", ""), _POLYNOMIAL_VARIANTS)


@lowers(aten.polygamma.default)
def _polygamma(builder: LoweringBuilder, n: int, x: Tensor) -> Any:
    if n < len(POLYGAMMA):
        return elementwise(builder, formula_of_loops(POLYGAMMA[n]), [x], Kind.INT_TO_FLOAT, heavy=True)
    if not _on_cpu([x]):
        return NotImplemented

    def by_zeta(ops: Any, value: Ref) -> Ref:
        dtype = ops.dtype(value)
        factor = ops.constant((-1.0) ** (n + 1) * math.factorial(n), dtype)
        return ops.mul(ops.zeta(ops.constant(float(n + 1), dtype), value), factor)

    return elementwise(builder, by_zeta, [x], Kind.INT_TO_FLOAT, heavy=True)


@lowers(aten.gcd.default)
def _gcd(builder: LoweringBuilder, x: Tensor, y: Tensor) -> Any:
    if not _on_cpu((x, y)) or torch.bool in (x.dtype, y.dtype):
        return NotImplemented
    return elementwise(builder, lambda ops, a, b: ops.gcd(a, b), [x, y], heavy=True)


@lowers(aten.lcm.default)
def _lcm(builder: LoweringBuilder, x: Tensor, y: Tensor) -> Any:
    if not _on_cpu((x, y)) or torch.bool in (x.dtype, y.dtype):
        return NotImplemented

    def least_common_multiple(ops: Any, a: Ref, b: Ref) -> Ref:
        divisor = ops.gcd(a, b)
        zero, one = ops.constant(0, ops.dtype(a)), ops.constant(1, ops.dtype(a))
        safe = ops.where(ops.eq(divisor, zero), one, divisor)  # then both are 0, and so is the result
        return ops.abs(ops.mul(ops.trunc_div(a, safe), b))

    return elementwise(builder, least_common_multiple, [x, y], heavy=True)
