"""Activation functions and their gradients as formulas, written once over any values with overloaded arithmetic:
tensors, or scalars of a loop. `decompositions/neural_networks/activations.py` registers them over tensors,
`inductor/lower/operators/neural_networks/activations.py` over scalars of a loop body.

A formula takes `m`, a namespace of elementary functions, the operator's tensors, and its numbers. The order of
operations is eager's, so that results have eager's bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stator.base.registry import Registry

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
INVERSE_SQRT_TAU = 1 / math.sqrt(2 * math.pi)
GELU_CUBIC = 0.044715
SIXTH = 0.1666666716337204  # eager's slope of hardsigmoid is a float32 in every dtype


@dataclass(frozen=True, slots=True)
class Activation:
    """formula: takes the operator's arguments behind `m`. wide: halves are computed in float32."""

    formula: Callable[..., Any]
    wide: bool


activations: Registry[str, Activation] = Registry("activation function")


def activation(*names: str, wide: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the formula of these ATen operators."""

    def decorate(formula: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            activations.add(name, Activation(formula, wide))
        return formula

    return decorate


@activation("gelu")
def gelu(m: Any, x: Any, *, approximate: str = "none") -> Any:
    curve = m.tanh(_gelu_inner(x)) if approximate == "tanh" else m.erf(x * SQRT_HALF)
    return x * 0.5 * (curve + 1.0)


def _gelu_inner(x: Any) -> Any:
    return (x + x * x * x * GELU_CUBIC) * SQRT_2_OVER_PI


@activation("gelu_backward")
def gelu_backward(m: Any, grad: Any, x: Any, *, approximate: str = "none") -> Any:
    if approximate == "tanh":
        tanh = m.tanh(_gelu_inner(x))
        growth = (x * x * (3 * GELU_CUBIC) + 1.0) * SQRT_2_OVER_PI
        return grad * ((tanh + 1.0) * 0.5 + x * 0.5 * (1.0 - tanh * tanh) * growth)
    below = (m.erf(x * SQRT_HALF) + 1.0) * 0.5
    return grad * (below + x * (m.exp(x * x * -0.5) * INVERSE_SQRT_TAU))


@activation("silu")
def silu(m: Any, x: Any) -> Any:
    return x / (m.exp(-x) + 1.0)


@activation("silu_backward")
def silu_backward(m: Any, grad: Any, x: Any) -> Any:
    sigmoid = 1.0 / (m.exp(-x) + 1.0)
    return grad * (sigmoid * (x * (1.0 - sigmoid) + 1.0))


@activation("sigmoid_backward")
def sigmoid_backward(m: Any, grad: Any, y: Any) -> Any:
    return grad * (1.0 - y) * y


@activation("tanh_backward")
def tanh_backward(m: Any, grad: Any, y: Any) -> Any:
    return grad * m.fma(-y, y, 1.0)


@activation("threshold", wide=False)
def threshold(m: Any, x: Any, threshold: Any, value: Any) -> Any:
    return m.where(x <= threshold, value, x)


@activation("threshold_backward", wide=False)
def threshold_backward(m: Any, grad: Any, x: Any, threshold: Any) -> Any:
    return m.where(x <= threshold, 0, grad)


@activation("hardsigmoid")
def hardsigmoid(m: Any, x: Any) -> Any:
    return m.clamp(x + 3.0, 0.0, 6.0) * (1 / 6)


@activation("hardsigmoid_backward", wide=False)
def hardsigmoid_backward(m: Any, grad: Any, x: Any) -> Any:
    return m.where((x > -3.0) & (x < 3.0), grad * SIXTH, 0.0)


@activation("hardswish")
def hardswish(m: Any, x: Any) -> Any:
    return x * m.clamp(x + 3.0, 0.0, 6.0) * (1 / 6)


@activation("hardswish_backward")
def hardswish_backward(m: Any, grad: Any, x: Any) -> Any:
    upper = m.where(x < 3.0, grad * (x / 3.0 + 0.5), grad)
    return m.where(x <= -3.0, 0.0, upper)


@activation("hardtanh", wide=False)
def hardtanh(m: Any, x: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    return m.clamp(x, min_val, max_val)


@activation("hardtanh_backward", wide=False)
def hardtanh_backward(m: Any, grad: Any, x: Any, min_val: Any, max_val: Any) -> Any:
    return m.where((x <= min_val) | (x >= max_val), 0.0, grad)


@activation("relu6", wide=False)
def relu6(m: Any, x: Any) -> Any:
    return m.clamp(x, 0, 6)


@activation("leaky_relu")
def leaky_relu(m: Any, x: Any, negative_slope: Any = 0.01) -> Any:
    return m.where(x > 0, x, x * negative_slope)


@activation("leaky_relu_backward")
def leaky_relu_backward(m: Any, grad: Any, x: Any, negative_slope: Any, self_is_result: bool) -> Any:
    return m.where(x > 0, grad, grad * negative_slope)


def _factor(alpha: Any, scale: Any) -> Any:
    """alpha * scale; `alpha` itself may be a number that only the running program knows."""
    return alpha if type(scale) in (int, float) and scale == 1 else alpha * scale


@activation("elu")
def elu(m: Any, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return m.where(x > 0, x * scale, m.expm1(x * input_scale) * _factor(alpha, scale))


@activation("celu")
def celu(m: Any, x: Any, alpha: Any = 1.0) -> Any:
    return elu(m, x, alpha, 1.0, 1.0 / alpha)


@activation("elu_backward")
def elu_backward(m: Any, grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Any) -> Any:
    """The slope of scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1)), given x or the result."""
    if is_result:
        slope = (x + _factor(alpha, scale)) * input_scale
    else:
        slope = m.exp(x * input_scale) * _factor(_factor(alpha, input_scale), scale)
    return m.where(x <= 0, grad * slope, grad * scale)


@activation("softplus")
def softplus(m: Any, x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = x * beta
    return m.where(scaled > threshold, x, m.log1p(m.exp(scaled)) / beta)


@activation("softplus_backward")
def softplus_backward(m: Any, grad: Any, x: Any, beta: Any, threshold: Any) -> Any:
    scaled = x * beta
    return m.where(scaled > threshold, grad, grad * m.sigmoid(scaled))


@activation("mish")
def mish(m: Any, x: Any) -> Any:
    return x * m.tanh(m.log1p(m.exp(x)))


@activation("mish_backward")
def mish_backward(m: Any, grad: Any, x: Any) -> Any:
    tanh = m.tanh(softplus(m, x))
    return grad * (tanh + x * m.sigmoid(x) * (1.0 - tanh * tanh))


@activation("softshrink")
def softshrink(m: Any, x: Any, lambd: Any = 0.5) -> Any:
    above = m.where(x > lambd, x - lambd, 0.0)
    return m.where(x != x, x, m.where(-x > lambd, x + lambd, above))


@activation("hardshrink", wide=False)
def hardshrink(m: Any, x: Any, lambd: Any = 0.5) -> Any:
    return m.where((-x <= lambd) & (x <= lambd), 0.0, x)


@activation("hardshrink_backward", "softshrink_backward", wide=False)
def shrink_backward(m: Any, grad: Any, x: Any, lambd: Any) -> Any:
    return m.where((-x <= lambd) & (x <= lambd), 0.0, grad)
