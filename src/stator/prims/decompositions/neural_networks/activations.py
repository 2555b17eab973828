"""Activation functions, and their gradients, by arithmetic, with the formulas of torch's documentation."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import decomposes, widened

aten = torch.ops.aten
SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
SIXTH = 0.1666666716337204  # eager's slope of hardsigmoid is a float32 in every dtype


def clamped(x: Any, low: float, high: float) -> Any:
    return aten.clamp_max.default(aten.clamp_min.default(x, low), high)


@decomposes("gelu")
def gelu(x: Any, *, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return aten.mul.Tensor(aten.mul.Tensor(x, 0.5), aten.add.Tensor(aten.tanh.default(_gelu_inner(x)), 1.0))
    return aten.mul.Tensor(
        aten.mul.Tensor(x, 0.5), aten.add.Tensor(aten.erf.default(aten.mul.Tensor(x, SQRT_HALF)), 1.0)
    )


def _gelu_inner(x: Any) -> Any:
    cube = aten.mul.Tensor(aten.mul.Tensor(x, x), x)
    return aten.mul.Tensor(aten.add.Tensor(x, aten.mul.Tensor(cube, GELU_CUBIC)), SQRT_2_OVER_PI)


@decomposes("gelu_backward")
def gelu_backward(grad: Any, x: Any, *, approximate: str = "none") -> Any:
    if approximate == "tanh":
        tanh = aten.tanh.default(_gelu_inner(x))
        left = aten.mul.Tensor(aten.add.Tensor(tanh, 1.0), 0.5)
        inner = aten.mul.Tensor(
            aten.add.Tensor(aten.mul.Tensor(aten.mul.Tensor(x, x), 3 * GELU_CUBIC), 1.0), SQRT_2_OVER_PI
        )
        sech2 = aten.rsub.Scalar(aten.mul.Tensor(tanh, tanh), 1.0)
        right = aten.mul.Tensor(aten.mul.Tensor(aten.mul.Tensor(x, 0.5), sech2), inner)
        return aten.mul.Tensor(grad, aten.add.Tensor(left, right))
    cdf = aten.mul.Tensor(aten.add.Tensor(aten.erf.default(aten.mul.Tensor(x, SQRT_HALF)), 1.0), 0.5)
    pdf = aten.mul.Tensor(aten.exp.default(aten.mul.Tensor(aten.mul.Tensor(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return aten.mul.Tensor(grad, aten.add.Tensor(cdf, aten.mul.Tensor(x, pdf)))


@decomposes("silu")
def silu(x: Any) -> Any:
    return aten.mul.Tensor(x, aten.sigmoid.default(x))


@decomposes("silu_backward")
def silu_backward(grad: Any, x: Any) -> Any:
    sigmoid = aten.sigmoid.default(x)
    slope = aten.add.Tensor(aten.mul.Tensor(x, aten.rsub.Scalar(sigmoid, 1.0)), 1.0)
    return aten.mul.Tensor(grad, aten.mul.Tensor(sigmoid, slope))


@decomposes("sigmoid_backward")
def sigmoid_backward(grad: Any, y: Any) -> Any:
    return aten.mul.Tensor(grad, aten.mul.Tensor(y, aten.rsub.Scalar(y, 1.0)))


@decomposes("tanh_backward")
def tanh_backward(grad: Any, y: Any) -> Any:
    return aten.mul.Tensor(grad, aten.rsub.Scalar(aten.mul.Tensor(y, y), 1.0))


@decomposes("threshold_backward", wide=False)
def threshold_backward(grad: Any, x: Any, threshold: float) -> Any:
    return aten.where.ScalarSelf(aten.le.Scalar(x, threshold), 0, grad)


@decomposes("hardsigmoid")
def hardsigmoid(x: Any) -> Any:
    return aten.div.Tensor(clamped(aten.add.Tensor(x, 3.0), 0.0, 6.0), 6.0)


@decomposes("hardsigmoid_backward", wide=False)
def hardsigmoid_backward(grad: Any, x: Any) -> Any:
    inside = aten.logical_and.default(aten.gt.Scalar(x, -3.0), aten.lt.Scalar(x, 3.0))
    return aten.where.ScalarOther(inside, aten.mul.Tensor(grad, SIXTH), 0.0)


@decomposes("hardswish")
def hardswish(x: Any) -> Any:
    return aten.div.Tensor(aten.mul.Tensor(x, clamped(aten.add.Tensor(x, 3.0), 0.0, 6.0)), 6.0)


@decomposes("hardswish_backward")
def hardswish_backward(grad: Any, x: Any) -> Any:
    middle = aten.mul.Tensor(grad, aten.add.Tensor(aten.div.Tensor(x, 3.0), 0.5))
    upper = aten.where.self(aten.lt.Scalar(x, 3.0), middle, grad)
    return aten.where.ScalarSelf(aten.le.Scalar(x, -3.0), 0.0, upper)


@decomposes("hardtanh", wide=False)
def hardtanh(x: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    return clamped(x, min_val, max_val)


@decomposes("hardtanh_backward", wide=False)
def hardtanh_backward(grad: Any, x: Any, min_val: Any, max_val: Any) -> Any:
    outside = aten.logical_or.default(aten.le.Scalar(x, min_val), aten.ge.Scalar(x, max_val))
    return aten.where.ScalarSelf(outside, 0.0, grad)


@decomposes("relu6", wide=False)
def relu6(x: Any) -> Any:
    return clamped(x, 0, 6)


@decomposes("leaky_relu")
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    return aten.where.self(aten.gt.Scalar(x, 0), x, aten.mul.Tensor(x, negative_slope))


@decomposes("leaky_relu_backward")
def leaky_relu_backward(grad: Any, x: Any, negative_slope: Any, self_is_result: bool) -> Any:
    return aten.where.self(aten.gt.Scalar(x, 0), grad, aten.mul.Tensor(grad, negative_slope))


@decomposes("_prelu_kernel", wide=False)
def prelu(x: Any, weight: Any) -> Any:
    return aten.where.self(aten.gt.Scalar(x, 0), x, aten.mul.Tensor(x, weight))


def _factor(alpha: Any, scale: Any) -> Any:
    """alpha * scale; `alpha` itself may be a number that only the running program knows."""
    return alpha if type(scale) in (int, float) and scale == 1 else alpha * scale


@decomposes("elu")
def elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    negative = aten.mul.Tensor(aten.expm1.default(aten.mul.Tensor(x, input_scale)), _factor(alpha, scale))
    return aten.where.self(aten.gt.Scalar(x, 0), aten.mul.Tensor(x, scale), negative)


@decomposes("celu")
def celu(x: Any, alpha: Any = 1.0) -> Any:
    return elu(x, alpha, 1.0, 1.0 / alpha)


@decomposes("selu", wide=False)
def selu(x: Any) -> Any:
    return aten.elu.default(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@decomposes("mish")
def mish(x: Any) -> Any:
    return aten.mul.Tensor(x, aten.tanh.default(softplus(x)))


@decomposes("softplus")
def softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = aten.mul.Tensor(x, beta)
    soft = aten.div.Tensor(aten.log1p.default(aten.exp.default(scaled)), beta)
    return aten.where.self(aten.gt.Scalar(scaled, threshold), x, soft)


@decomposes("softplus_backward")
def softplus_backward(grad: Any, x: Any, beta: Any, threshold: Any) -> Any:
    scaled = aten.mul.Tensor(x, beta)
    return aten.where.self(aten.gt.Scalar(scaled, threshold), grad, aten.mul.Tensor(grad, aten.sigmoid.default(scaled)))


@decomposes("log_sigmoid_forward")
def log_sigmoid_forward(x: Any) -> Any:
    """min(x, 0) - log1p(exp(-|x|)); the second result is the buffer that eager saves for the gradient: exp(-|x|)."""
    buffer = aten.exp.default(aten.neg.default(aten.abs.default(x)))
    result = aten.sub.Tensor(aten.clamp_max.default(x, 0.0), aten.log1p.default(buffer))
    return (result, buffer) if x.device.type == "cpu" else (result, aten.new_empty.default(x, [0]))


@decomposes("softshrink")
def softshrink(x: Any, lambd: Any = 0.5) -> Any:
    above = aten.where.ScalarOther(aten.gt.Scalar(x, lambd), aten.sub.Tensor(x, lambd), 0.0)
    below = aten.where.self(aten.gt.Scalar(aten.neg.default(x), lambd), aten.add.Tensor(x, lambd), above)
    return aten.where.self(aten.ne.Tensor(x, x), x, below)


@decomposes("hardshrink", wide=False)
def hardshrink(x: Any, lambd: Any = 0.5) -> Any:
    inside = aten.logical_and.default(aten.le.Scalar(aten.neg.default(x), lambd), aten.le.Scalar(x, lambd))
    return aten.where.ScalarSelf(inside, 0.0, x)


@decomposes("threshold", wide=False)
def threshold(x: Any, threshold: Any, value: Any) -> Any:
    return aten.where.ScalarSelf(aten.le.Scalar(x, threshold), value, x)


@decomposes("glu")
def glu(x: Any, dim: int = -1) -> Any:
    half = x.shape[dim] // 2
    first, second = aten.slice.Tensor(x, dim, 0, half), aten.slice.Tensor(x, dim, half, 2 * half)
    return aten.mul.Tensor(first, aten.sigmoid.default(second))


@decomposes("elu_backward")
def elu_backward(grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Any) -> Any:
    """The slope of scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1)), given x or the result."""
    if is_result:
        slope = aten.mul.Tensor(aten.add.Tensor(x, _factor(alpha, scale)), input_scale)
    else:
        factor = _factor(_factor(alpha, input_scale), scale)
        slope = aten.mul.Tensor(aten.exp.default(aten.mul.Tensor(x, input_scale)), factor)
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
    inside = aten.logical_and.default(aten.le.Scalar(aten.neg.default(x), lambd), aten.le.Scalar(x, lambd))
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
