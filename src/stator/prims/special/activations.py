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

from stator.base.registry import Registry, name_lambda

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
            activations.add(name, Activation(name_lambda(formula, name), wide))
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


@activation("silu_backward")
def silu_backward(m: Any, grad: Any, x: Any) -> Any:
    sigmoid = 1.0 / (m.exp(-x) + 1.0)
    return grad * (sigmoid * (x * (1.0 - sigmoid) + 1.0))


@activation("hardswish_backward")
def hardswish_backward(m: Any, grad: Any, x: Any) -> Any:
    upper = m.where(x < 3.0, grad * (x / 3.0 + 0.5), grad)
    return m.where(x <= -3.0, 0.0, upper)


def _factor(alpha: Any, scale: Any) -> Any:
    """alpha * scale; `alpha` itself may be a number that only the running program knows."""
    return alpha if type(scale) in (int, float) and scale == 1 else alpha * scale


@activation("elu")
def elu(m: Any, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return m.where(x > 0, x * scale, m.expm1(x * input_scale) * _factor(alpha, scale))


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


@activation("mish_backward")
def mish_backward(m: Any, grad: Any, x: Any) -> Any:
    tanh = m.tanh(softplus(m, x))
    return grad * (tanh + x * m.sigmoid(x) * (1.0 - tanh * tanh))


@activation("softshrink")
def softshrink(m: Any, x: Any, lambd: Any = 0.5) -> Any:
    above = m.where(x > lambd, x - lambd, 0.0)
    return m.where(x != x, x, m.where(-x > lambd, x + lambd, above))


# Formulas of one expression. Halves are computed in float32, except by those that only select and scale.
WIDE: dict[str, Callable[..., Any]] = {
    "silu": lambda m, x: x / (m.exp(-x) + 1.0),
    "sigmoid_backward": lambda m, grad, y: grad * (1.0 - y) * y,
    "tanh_backward": lambda m, grad, y: grad * m.fma(-y, y, 1.0),
    "hardsigmoid": lambda m, x: m.clamp(x + 3.0, 0.0, 6.0) * (1 / 6),
    "hardswish": lambda m, x: x * m.clamp(x + 3.0, 0.0, 6.0) * (1 / 6),
    "leaky_relu": lambda m, x, slope=0.01: m.where(x > 0, x, x * slope),
    "leaky_relu_backward": lambda m, grad, x, slope, is_result: m.where(x > 0, grad, grad * slope),
    "celu": lambda m, x, alpha=1.0: elu(m, x, alpha, 1.0, 1.0 / alpha),
    "mish": lambda m, x: x * m.tanh(m.log1p(m.exp(x))),
}
NARROW: dict[str, Callable[..., Any]] = {
    "threshold": lambda m, x, bound, value: m.where(x <= bound, value, x),
    "threshold_backward": lambda m, grad, x, bound: m.where(x <= bound, 0, grad),
    "hardsigmoid_backward": lambda m, grad, x: m.where((x > -3.0) & (x < 3.0), grad * SIXTH, 0.0),
    "hardtanh": lambda m, x, low=-1, high=1: m.clamp(x, low, high),
    "hardtanh_backward": lambda m, grad, x, low, high: m.where((x <= low) | (x >= high), 0.0, grad),
    "relu6": lambda m, x: m.clamp(x, 0, 6),
    "hardshrink": lambda m, x, bound=0.5: m.where((-x <= bound) & (x <= bound), 0.0, x),
    "hardshrink_backward": lambda m, grad, x, bound: m.where((-x <= bound) & (x <= bound), 0.0, grad),
    "softshrink_backward": lambda m, grad, x, bound: m.where((-x <= bound) & (x <= bound), 0.0, grad),
}
for _wide, _formulas in ((True, WIDE), (False, NARROW)):
    for _name, _formula in _formulas.items():
        activation(_name, wide=_wide)(_formula)
