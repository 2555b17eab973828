"""Lowerings of gradients of activation functions with one expression each. Other gradients are decomposed before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.registry import lowerings
from stator.inductor.lower.tensor import Tensor
from stator.prims.decompositions.neural_networks.activations import GELU_CUBIC, SIXTH, SQRT_2_OVER_PI, SQRT_HALF
from stator.prims.type_promotion import is_integral

from ..pointwise import constant_like, elementwise

aten = torch.ops.aten
INVERSE_SQRT_TAU = 1 / math.sqrt(2 * math.pi)


def lowers_gradient(target: Any, heavy: bool = False) -> Callable[[Callable[..., Ref]], Callable[..., Ref]]:
    """Decorator: `function(ops, grad, x, *numbers)`, where x is the input or the result of the activation."""

    def decorate(function: Callable[..., Ref]) -> Callable[..., Ref]:
        def lowering(builder: LoweringBuilder, grad: Tensor, x: Tensor, *numbers: Any, **named: Any) -> Any:
            if is_integral(x.dtype) or is_integral(grad.dtype):
                return NotImplemented
            dtype = builder.meta.dtype
            return elementwise(
                builder, lambda ops, g, v: function(ops, g, v, *numbers, **named), [grad, x], heavy=heavy, dtype=dtype
            )

        lowerings.add(target, lowering)
        return function

    return decorate


def outside_range(ops: Any, x: Ref, low: float, high: float) -> Ref:
    return ops.bitwise_or(ops.le(x, constant_like(ops, x, low)), ops.ge(x, constant_like(ops, x, high)))


@lowers_gradient(aten.threshold_backward.default)
def _threshold(ops: Any, grad: Ref, x: Ref, limit: float) -> Ref:
    return ops.where(ops.le(x, constant_like(ops, x, limit)), constant_like(ops, grad, 0), grad)


@lowers_gradient(aten.sigmoid_backward.default)
def _sigmoid(ops: Any, grad: Ref, y: Ref) -> Ref:
    return ops.mul(ops.mul(grad, ops.sub(constant_like(ops, y, 1), y)), y)


@lowers_gradient(aten.tanh_backward.default)
def _tanh(ops: Any, grad: Ref, y: Ref) -> Ref:
    return ops.mul(grad, ops.fma(ops.neg(y), y, constant_like(ops, y, 1)))


@lowers_gradient(aten.gelu_backward.default, heavy=True)
def _gelu(ops: Any, grad: Ref, x: Ref, approximate: str = "none") -> Ref:
    one, half = constant_like(ops, x, 1), constant_like(ops, x, 0.5)
    square = ops.mul(x, x)
    if approximate == "tanh":
        factor = constant_like(ops, x, SQRT_2_OVER_PI)
        inner = ops.mul(ops.add(x, ops.mul(ops.mul(square, x), constant_like(ops, x, GELU_CUBIC))), factor)
        tanh = ops.tanh(inner)
        left = ops.mul(ops.add(tanh, one), half)
        growth = ops.mul(ops.add(ops.mul(square, constant_like(ops, x, 3 * GELU_CUBIC)), one), factor)
        right = ops.mul(ops.mul(ops.mul(x, half), ops.sub(one, ops.mul(tanh, tanh))), growth)
        return ops.mul(grad, ops.add(left, right))
    below = ops.mul(ops.add(ops.erf(ops.mul(x, constant_like(ops, x, SQRT_HALF))), one), half)
    density = ops.mul(ops.exp(ops.mul(square, constant_like(ops, x, -0.5))), constant_like(ops, x, INVERSE_SQRT_TAU))
    return ops.mul(grad, ops.add(below, ops.mul(x, density)))


@lowers_gradient(aten.silu_backward.default, heavy=True)
def _silu(ops: Any, grad: Ref, x: Ref) -> Ref:
    one = constant_like(ops, x, 1)
    sigmoid = ops.div(one, ops.add(one, ops.exp(ops.neg(x))))
    return ops.mul(grad, ops.mul(sigmoid, ops.add(ops.mul(x, ops.sub(one, sigmoid)), one)))


@lowers_gradient(aten.hardsigmoid_backward.default)
def _hardsigmoid(ops: Any, grad: Ref, x: Ref) -> Ref:
    inside = ops.bitwise_and(ops.gt(x, constant_like(ops, x, -3)), ops.lt(x, constant_like(ops, x, 3)))  # false for NaN
    return ops.where(inside, ops.mul(grad, constant_like(ops, x, SIXTH)), constant_like(ops, grad, 0))


@lowers_gradient(aten.hardswish_backward.default)
def _hardswish(ops: Any, grad: Ref, x: Ref) -> Ref:
    three = constant_like(ops, x, 3)
    middle = ops.mul(grad, ops.add(ops.div(x, three), constant_like(ops, x, 0.5)))
    upper = ops.where(ops.lt(x, three), middle, grad)
    return ops.where(ops.le(x, constant_like(ops, x, -3)), constant_like(ops, grad, 0), upper)


@lowers_gradient(aten.hardtanh_backward.default)
def _hardtanh(ops: Any, grad: Ref, x: Ref, low: float, high: float) -> Ref:
    return ops.where(outside_range(ops, x, low, high), constant_like(ops, grad, 0), grad)


@lowers_gradient(aten.leaky_relu_backward.default)
def _leaky_relu(ops: Any, grad: Ref, x: Ref, negative_slope: float, is_result: bool) -> Ref:
    return ops.where(ops.gt(x, constant_like(ops, x, 0)), grad, ops.mul(grad, constant_like(ops, x, negative_slope)))


@lowers_gradient(aten.softplus_backward.default, heavy=True)
def _softplus(ops: Any, grad: Ref, x: Ref, beta: float, threshold: float) -> Ref:
    scaled = ops.mul(x, constant_like(ops, x, beta))
    return ops.where(ops.gt(scaled, constant_like(ops, x, threshold)), grad, ops.mul(grad, ops.sigmoid(scaled)))
