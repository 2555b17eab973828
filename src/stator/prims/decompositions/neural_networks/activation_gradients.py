"""Gradients of activation functions by arithmetic. The most common ones stand beside their functions in
activations.py."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import decomposes, widened

from .activations import softplus

aten = torch.ops.aten


@decomposes("elu_backward")
def elu_backward(grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Any) -> Any:
    """The slope of scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1)), given x or the result."""
    if is_result:
        slope = aten.mul.Tensor(aten.add.Tensor(x, alpha * scale), input_scale)
    else:
        slope = aten.mul.Tensor(aten.exp.default(aten.mul.Tensor(x, input_scale)), input_scale * alpha * scale)
    return aten.where.self(aten.le.Scalar(x, 0), aten.mul.Tensor(grad, slope), aten.mul.Tensor(grad, scale))


@decomposes("mish_backward")
def mish_backward(grad: Any, x: Any) -> Any:
    tanh = aten.tanh.default(softplus(x))
    sech2 = aten.rsub.Scalar(aten.mul.Tensor(tanh, tanh), 1.0)
    along = aten.mul.Tensor(aten.mul.Tensor(x, aten.sigmoid.default(x)), sech2)
    return aten.mul.Tensor(grad, aten.add.Tensor(tanh, along))


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


@decomposes("hardshrink_backward softshrink_backward", wide=False)
def shrink_backward(grad: Any, x: Any, lambd: Any) -> Any:
    inside = aten.logical_and.default(aten.ge.Scalar(x, -lambd), aten.le.Scalar(x, lambd))
    return aten.where.ScalarSelf(inside, 0.0, grad)


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
