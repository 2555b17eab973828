"""Activation functions, and their gradients: the formulas of `prims/special/activations.py` in ATen operators, and
functions of several results or of parts of a tensor."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import decomposes, decomposition_table, widened
from stator.prims.decompositions.special import FUNCTIONS
from stator.prims.special.activations import Activation, activations

aten = torch.ops.aten


def _decompose(name: str, entry: Activation) -> None:
    @functools.wraps(entry.formula)
    def rule(*args: Any, **named: Any) -> Any:
        return entry.formula(FUNCTIONS, *args, **named)

    decomposes(name, wide=entry.wide)(rule)


for _name in activations:
    _decompose(_name, activations[_name])


@decomposes("log_sigmoid_forward")
def log_sigmoid_forward(x: Any) -> Any:
    """min(x, 0) - log1p(exp(-|x|)); the second result is the buffer that eager saves for the gradient: exp(-|x|)."""
    buffer = aten.exp.default(aten.neg.default(aten.abs.default(x)))
    result = aten.sub.Tensor(aten.clamp_max.default(x, 0.0), aten.log1p.default(buffer))
    return (result, buffer) if x.device.type == "cpu" else (result, aten.new_empty.default(x, [0]))


@decomposes("glu")
def glu(x: Any, dim: int = -1) -> Any:
    half = x.shape[dim] // 2
    first, second = aten.slice.Tensor(x, dim, 0, half), aten.slice.Tensor(x, dim, half, 2 * half)
    return aten.mul.Tensor(first, aten.sigmoid.default(second))


@decomposes("glu_backward")
def glu_backward(grad: Any, x: Any, dim: int) -> Any:
    half = x.shape[dim] // 2
    first, second = aten.slice.Tensor(x, dim, 0, half), aten.slice.Tensor(x, dim, half, 2 * half)
    gate = aten.sigmoid.default(second)
    through = aten.mul.Tensor(grad, gate)
    slope = aten.mul.Tensor(aten.rsub.Scalar(gate, 1.0), first)
    return aten.cat.default([through, aten.mul.Tensor(through, slope)], dim)


@decomposes("log_sigmoid_backward")
def log_sigmoid_backward(grad: Any, x: Any, buffer: Any) -> Any:
    """1 - sigmoid(x) from exp(-|x|), which the CPU's forward saves."""
    power = buffer if x.device.type == "cpu" else aten.exp.default(aten.neg.default(aten.abs.default(x)))
    fraction = aten.div.Tensor(power, aten.add.Tensor(power, 1.0))
    slope = aten.where.self(aten.lt.Scalar(x, 0.0), aten.rsub.Scalar(fraction, 1.0), fraction)
    return aten.mul.Tensor(grad, slope)


DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}


def nearest(number: float, dtype: torch.dtype) -> float:
    """Return the number rounded to a floating-point dtype; for numbers far from the dtype's limits."""
    fraction, exponent = math.frexp(number)
    digits = DIGITS[dtype]
    return math.ldexp(round(math.ldexp(fraction, digits)), exponent - digits)


@decomposes("logit_backward", wide=False)
def logit_backward(grad: Any, x: Any, eps: float | None = None) -> Any:
    """1 / (x (1 - x)). Beyond eps and 1 - eps, both rounded to the dtype, the function is constant; without an eps it
    is undefined beyond 0 and 1."""
    low, other = (0.0, float("nan")) if eps is None or eps < 0 else (eps, 0.0)
    low = nearest(low, x.dtype)
    outside = aten.logical_or.default(aten.lt.Scalar(x, low), aten.gt.Scalar(x, nearest(1.0 - low, x.dtype)))
    x = widened(x)
    # At a zero of either sign the slope is plus infinity.
    inner = aten.div.Tensor(widened(grad), aten.abs.default(aten.mul.Tensor(x, aten.rsub.Scalar(x, 1.0))))
    return aten.where.ScalarSelf(outside, other, inner)


@decomposes("_prelu_kernel_backward")
def prelu_backward(grad: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    positive = aten.gt.Scalar(x, 0)
    grad_input = aten.where.self(positive, grad, aten.mul.Tensor(grad, weight))
    return grad_input, aten.where.ScalarSelf(positive, 0.0, aten.mul.Tensor(grad, x))


decomposition_table(
    {
        "_prelu_kernel": lambda x, weight: aten.where.self(aten.gt.Scalar(x, 0), x, aten.mul.Tensor(x, weight)),
        "selu": lambda x: aten.elu.default(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    },
    wide=False,
)
