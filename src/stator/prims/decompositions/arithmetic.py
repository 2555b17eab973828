"""Elementwise arithmetic by simpler arithmetic: fused multiply-adds, roundings, clamps, special values."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.prims.layout import broadcast_shapes
from stator.prims.type_promotion import common_dtype, is_integral, number_dtype

from .decomposition_decorator import cast, decomposes, decomposition_table

aten = torch.ops.aten


@decomposes("rsub.Tensor rsub.Scalar")
def rsub(self: Any, other: Any, alpha: Any = 1) -> Any:
    scaled = self if alpha == 1 else aten.mul.Tensor(self, alpha)
    if isinstance(other, torch.Tensor):
        return aten.sub.Tensor(other, scaled)
    return aten.add.Tensor(aten.neg.default(scaled), other)


def _same(name: str, target: torch._ops.OpOverload) -> None:
    """Register an operator that differs from another one only in the declared type of an operand."""

    @decomposes(name, wide=False)
    def same(*args: Any, **options: Any) -> Any:
        return target(*args, **options)


_same("add.Scalar", aten.add.Tensor)
_same("sub.Scalar", aten.sub.Tensor)
_same("mul.Scalar", aten.mul.Tensor)
_same("div.Scalar", aten.div.Tensor)
_same("div.Scalar_mode", aten.div.Tensor_mode)
_same("clamp_min.Tensor", aten.maximum.default)
_same("clamp_max.Tensor", aten.minimum.default)


def _of_number(name: str) -> None:
    of_tensors = getattr(aten, name).Tensor

    @decomposes(f"{name}.Scalar", wide=False)
    def of_number(self: Any, other: Any) -> Any:
        dtype = torch.float64 if isinstance(other, float) else number_dtype(other)
        return of_tensors(self, aten.full.default([], other, dtype=dtype, device=self.device))


for _name in ("copysign", "fmod", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor"):
    _of_number(_name)


@decomposes("addcmul")
def addcmul(self: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    product = (
        aten.mul.Tensor(tensor1, tensor2) if value == 1 else aten.mul.Tensor(aten.mul.Tensor(tensor1, value), tensor2)
    )
    return aten.add.Tensor(self, product)


@decomposes("addcdiv")
def addcdiv(self: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    if is_integral(tensor1.dtype) and is_integral(tensor2.dtype):
        raise RuntimeError("Integer division with addcdiv is no longer supported")
    scaled = tensor1 if value == 1 else aten.mul.Tensor(tensor1, value)
    return aten.add.Tensor(self, aten.div.Tensor(scaled, tensor2))


@decomposes("lerp.Scalar lerp.Tensor")
def lerp(self: Any, end: Any, weight: Any) -> Any:
    """Exact at both ends: computed from the start for weights below a half, else from the end."""
    span = aten.sub.Tensor(end, self)
    from_start = aten.add.Tensor(self, aten.mul.Tensor(span, weight))
    if isinstance(weight, torch.Tensor):
        if weight.dtype.is_complex:
            return NotImplemented
        from_end = aten.sub.Tensor(end, aten.mul.Tensor(span, aten.rsub.Scalar(weight, 1)))
        return aten.where.self(aten.lt.Scalar(aten.abs.default(weight), 0.5), from_start, from_end)
    if abs(weight) < 0.5:
        return from_start
    return aten.sub.Tensor(end, aten.mul.Tensor(span, 1 - weight))


@decomposes("floor_divide floor_divide.Scalar", wide=False)
def floor_divide(self: Any, other: Any) -> Any:
    return aten.div.Tensor_mode(self, other, rounding_mode="floor")


@decomposes("clamp", wide=False)
def clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    if isinstance(min, complex) or isinstance(max, complex):
        return NotImplemented
    dtype = common_dtype((self, min, max))
    result = cast(self, dtype)
    if min is not None:
        result = aten.clamp_min.default(result, min)
    return result if max is None else aten.clamp_max.default(result, max)


@decomposes("clamp.Tensor", wide=False)
def clamp_tensor(self: Any, min: Any = None, max: Any = None) -> Any:
    result = self if min is None else aten.maximum.default(self, min)
    return result if max is None else aten.minimum.default(result, max)


def _bounded(name: str, is_beyond: torch._ops.OpOverload) -> None:
    @decomposes(name, wide=False)
    def bounded(self: Any, bound: Any) -> Any:
        self = cast(self, common_dtype((self, bound)))
        if bound != bound:
            return aten.full_like.default(self, bound)
        return aten.where.ScalarSelf(is_beyond(self, bound), bound, self)


_bounded("clamp_min", aten.lt.Scalar)
_bounded("clamp_max", aten.gt.Scalar)


@decomposes("logit")
def logit(self: Any, eps: float | None = None) -> Any:
    if is_integral(self.dtype):
        self = cast(self, torch.get_default_dtype())
    x = self
    if eps is not None and eps >= 0:
        x = aten.clamp_max.default(self, 1.0 - eps)
        # not `clamp`, which prefers the upper bound where bounds cross
        x = aten.where.ScalarSelf(aten.lt.Scalar(self, eps), eps, x)
    return aten.log.default(aten.div.Tensor(x, aten.rsub.Scalar(x, 1.0)))


def _logaddexp(name: str, power: Any, unit: float) -> None:
    @decomposes(name)
    def logaddexp(self: Any, other: Any) -> Any:
        if self.dtype.is_complex or other.dtype.is_complex:
            return NotImplemented
        largest = aten.maximum.default(self, other)
        infinite = aten.logical_and.default(aten.isinf.default(self), aten.eq.Tensor(self, other))
        gap = aten.neg.default(aten.abs.default(aten.sub.Tensor(self, other)))
        soft = aten.log1p.default(power(gap))
        soft = soft if unit == 1 else aten.mul.Tensor(soft, unit)
        return aten.where.self(infinite, self, aten.add.Tensor(largest, soft))


_logaddexp("logaddexp", aten.exp.default, 1)
_logaddexp("logaddexp2", aten.exp2.default, 1 / math.log(2))


@decomposes("xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other")
def xlogy(self: Any, other: Any) -> Any:
    """x log y, which is 0 for x = 0 unless y is NaN."""
    if common_dtype((self, other)).is_complex:
        return NotImplemented
    if not isinstance(other, torch.Tensor):
        other = aten.scalar_tensor.default(other, dtype=torch.float64, device=self.device)
    if not isinstance(self, torch.Tensor):
        zero = (
            aten.mul.Tensor(aten.log.default(other), self)
            if self != 0
            else aten.zeros_like.default(aten.log.default(other))
        )
        return aten.where.self(aten.ne.Tensor(other, other), other, zero)
    product = aten.mul.Tensor(self, aten.log.default(other))
    result = aten.where.ScalarSelf(aten.eq.Scalar(self, 0), 0.0, product)
    return aten.where.ScalarSelf(aten.ne.Tensor(other, other), math.nan, result)


@decomposes("nan_to_num", wide=False)
def nan_to_num(self: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    if is_integral(self.dtype):
        return aten.clone.default(self)
    if self.dtype.is_complex:
        return NotImplemented
    limits = torch.finfo(self.dtype)
    result = aten.where.ScalarSelf(aten.ne.Tensor(self, self), 0.0 if nan is None else nan, self)
    result = aten.where.ScalarSelf(aten.eq.Scalar(self, math.inf), limits.max if posinf is None else posinf, result)
    return aten.where.ScalarSelf(aten.eq.Scalar(self, -math.inf), limits.min if neginf is None else neginf, result)


def _is_infinite(name: str, number: float) -> None:
    @decomposes(name, wide=False)
    def is_infinite(self: Any) -> Any:
        return aten.eq.Scalar(self, number)


_is_infinite("isposinf", math.inf)
_is_infinite("isneginf", -math.inf)


@decomposes("isfinite", wide=False)
def isfinite(self: Any) -> Any:
    if is_integral(self.dtype):
        return aten.ones_like.default(self, dtype=torch.bool)
    return aten.lt.Scalar(aten.abs.default(self), math.inf)


@decomposes("heaviside", wide=False)
def heaviside(self: Any, values: Any) -> Any:
    step = aten.where.self(aten.gt.Scalar(self, 0), aten.ones_like.default(self), aten.zeros_like.default(self))
    return aten.where.self(aten.eq.Scalar(self, 0), values, step)


@decomposes("round.decimals")
def round_decimals(self: Any, *, decimals: int) -> Any:
    if is_integral(self.dtype):
        return NotImplemented
    if decimals == 0:
        return aten.round.default(self)
    factor = 10.0 ** abs(decimals)
    if decimals < 0:
        return aten.mul.Tensor(aten.round.default(aten.div.Tensor(self, factor)), factor)
    return aten.div.Tensor(aten.round.default(aten.mul.Tensor(self, factor)), factor)


@decomposes("ldexp.Tensor", wide=False)
def ldexp(self: Any, other: Any) -> Any:
    if broadcast_shapes(tuple(self.shape), tuple(other.shape)) != tuple(self.shape):
        return NotImplemented  # eager's layout then depends on resizing an intermediate result
    return aten.mul.Tensor(self, aten.pow.Scalar(2.0, other))


decomposition_table(
    {
        "square": lambda self: aten.pow.Tensor_Scalar(self, 2),
        "frac": lambda self: aten.sub.Tensor(self, aten.trunc.default(self)),
        "sgn": lambda self: NotImplemented if self.dtype.is_complex else aten.sign.default(self),
        "polar": lambda abs, angle: aten.complex.default(
            aten.mul.Tensor(abs, aten.cos.default(angle)), aten.mul.Tensor(abs, aten.sin.default(angle))
        ),
    },
    wide=False,
)
decomposition_table(
    {
        "deg2rad": lambda self: aten.mul.Tensor(self, math.pi / 180),
        "rad2deg": lambda self: aten.mul.Tensor(self, 180 / math.pi),
    }
)
