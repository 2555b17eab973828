"""Lowerings of layer, group and batch normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.heuristics import MIN_CHANNEL_RUN, MOST_POSITIONS, WIDE_GROUP
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Index, Tensor
from stator.inductor.sizes import product
from stator.prims.layout import numel
from stator.prims.type_promotion import computation_dtype

from ..creation import filled
from ..patches import is_channels_last
from ..pointwise import cast, elementwise
from ..reductions import element_count, has_elements, moments, reduce
from ..views import reshape

aten = torch.ops.aten


@lowers(aten.native_layer_norm.default)
def _layer_norm(
    builder: LoweringBuilder,
    x: Tensor,
    normalized: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    if not has_elements(x) or numel(tuple(normalized)) == 0:
        return NotImplemented
    dims = tuple(range(x.rank - len(normalized), x.rank))
    rstd, mean, centers = _inverse_deviation(builder, x, dims, eps)
    out = _normalized(builder, x, centers, rstd, weight, bias)
    return [out, *_saved(builder, mean, rstd)]


def _saved(builder: LoweringBuilder, mean: Tensor, rstd: Tensor) -> list[Tensor]:
    """The statistics for the backward, whose dtype may be narrower than in the computation of the result."""
    return [cast(builder, part, meta.dtype) for part, meta in zip((mean, rstd), builder.meta[1:], strict=True)]


def _inverse_deviation(
    builder: LoweringBuilder, x: Tensor, dims: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """1 / sqrt(var + eps), the mean, and tensors that add up to the mean.

    A variance that overflows gives NaN: zeros would hide that a run diverges.
    """
    return moments(builder, x, dims, _from_squares(element_count(x, dims), eps), computation_dtype(x.dtype))


def _from_squares(count: Any, eps: float) -> Callable[[Any, Ref], Ref]:
    """The inverse deviation from the sum of the squared deviations of `count` elements."""

    def finish(ops: Any, squares: Ref) -> Ref:
        working = ops.dtype(squares)
        variance = ops.div(squares, ops.constant(count, working))
        inverse = ops.rsqrt(ops.add(variance, ops.constant(eps, working)))
        return ops.where(ops.isinf(squares), ops.constant(math.nan, working), inverse)

    return finish


def _normalized(
    builder: LoweringBuilder,
    x: Tensor,
    centers: list[Tensor],
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """(x - sum of centers) * rstd * weight + bias."""
    working = computation_dtype(x.dtype)
    affine = [part for part in (weight, bias) if part is not None]

    def function(ops: Any, value: Ref, scale: Ref, *others: Ref) -> Ref:
        given = iter(others)
        for _ in centers:
            value = ops.sub(value, next(given))
        result = ops.mul(value, scale)
        if weight is not None:
            result = ops.mul(result, next(given))
        if bias is not None:
            result = ops.add(result, next(given))
        return result

    operands = [x, rstd, *centers, *affine]
    return cast(builder, elementwise(builder, function, [cast(builder, part, working) for part in operands]), x.dtype)


@lowers(aten.native_group_norm.default)
def _group_norm(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    spatial: int,
    groups: int,
    eps: float,
) -> Any:
    if not has_elements(x):
        return NotImplemented
    width = channels // groups
    if 1 < x.sizes.hint(width) < WIDE_GROUP and is_channels_last(x) and _adds_up_channels(x):
        return _group_norm_nhwc(builder, x, weight, bias, groups, eps)
    rest = x.shape[2:]
    grouped = reshape(x, (batch, groups, width, *rest))
    dims = tuple(range(2, grouped.rank))
    rstd, mean, centers = _inverse_deviation(builder, grouped, dims, eps)
    per_channel = (1, groups, width, *([1] * len(rest)))
    weight, bias = (None if part is None else reshape(part, per_channel) for part in (weight, bias))
    out = reshape(_normalized(builder, grouped, centers, rstd, weight, bias), x.shape)
    return [out, *_saved(builder, reshape(mean, (batch, groups)), reshape(rstd, (batch, groups)))]


def _adds_up_channels(x: Tensor) -> bool:
    """True if moments of the channels of NHWC images are quicker than those of groups at once: on a GPU, where the
    positions of a channel fit in registers."""
    return x.device.type == "cpu" or x.sizes.hint(product(x.shape[2:])) <= MOST_POSITIONS


def _group_norm_nhwc(
    builder: LoweringBuilder, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> list[Tensor]:
    """Moments of channels, then of groups of them (T. Chan, G. Golub and R. LeVeque, 1983). Loops run along all
    channels of a position, where those of a group would be short."""
    batch, channels, *rest = x.shape
    working, each, count = computation_dtype(x.dtype), channels // groups, product(rest)
    per_channel = (batch, channels, *([1] * len(rest)))
    found = moments(builder, x, tuple(range(2, x.rank)), lambda ops, squares: squares, working)
    squares, means = (reshape(part, (batch, groups, each)) for part in found[:2])
    mean = reduce(
        builder,
        "sum",
        means,
        (2,),
        working,
        epilogue=lambda ops, total: ops.div(total, ops.constant(each, ops.dtype(total))),
    )

    def joined(ops: Any, index: Index) -> list[Ref]:
        away = ops.sub(means.load(ops, index), mean.load(ops, (*index[:2], 0)))
        between = ops.mul(ops.mul(away, away), ops.constant(count, working))
        total = ops.reduce("sum", ops.add(squares.load(ops, index), between))
        return [_from_squares(count * each, eps)(ops, total)]

    (rstd,) = builder.reduction(joined, [means, squares, mean], means.shape, (2,), [working])

    def affine(part: Tensor | None) -> list[Tensor]:
        return [] if part is None else [cast(builder, reshape(part, (1, groups, each)), working)]

    center = elementwise(builder, lambda ops, value, _: value, [mean, means])
    scale = elementwise(
        builder,
        lambda ops, value, _, *factor: ops.mul(value, *factor) if factor else value,
        [rstd, means, *affine(weight)],
    )
    if not computes_per_element(x):
        builder.store_together([center, scale])
    shift = [] if bias is None else [cast(builder, reshape(bias, (1, channels, *per_channel[2:])), working)]

    def normalized(ops: Any, value: Ref, center: Ref, scale: Ref, *shift: Ref) -> Ref:
        deviation = ops.sub(value, center)
        return ops.fma(deviation, scale, *shift) if shift else ops.mul(deviation, scale)

    operands = [cast(builder, x, working), reshape(center, per_channel), reshape(scale, per_channel), *shift]
    out = cast(builder, elementwise(builder, normalized, operands), x.dtype)
    return [out, *_saved(builder, reshape(mean, (batch, groups)), reshape(rstd, (batch, groups)))]


@lowers(aten.native_batch_norm.default)
def _native_batch_norm(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training or mean is None or variance is None:
        return NotImplemented
    return _batch_norm_inference(builder, x, weight, bias, mean, variance, momentum, eps)


def computes_per_element(x: Tensor) -> bool:
    """True if loops over x compute values of channels themselves: where the innermost loop stays within a channel and
    computes them once, and on a GPU, where a kernel that stores them costs more than the arithmetic."""
    if x.device.type != "cpu":
        return True
    run = x.sizes.hint(product(x.shape[2:]))
    return x.rank > 2 and x.sizes.hint(x.strides[1]) > 1 and run >= MIN_CHANNEL_RUN


@lowers(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_inference(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """`x * scale + shift` with a scale and a shift per channel, rounded once, as in eager."""
    working = computation_dtype(x.dtype)
    per_channel = (1, -1, *([1] * (x.rank - 2)))
    mean, variance = cast(builder, mean, working), cast(builder, variance, working)
    weight, bias = (None if part is None else cast(builder, part, working) for part in (weight, bias))

    def inverse_deviation(ops: Any, spread: Ref, *factor: Ref) -> Ref:
        inverse = ops.rsqrt(ops.add(spread, ops.constant(eps, working)))
        return ops.mul(inverse, factor[0]) if factor else inverse

    def negative_shift(ops: Any, center: Ref, factor: Ref, *offset: Ref) -> Ref:
        center = ops.neg(center)
        return ops.fma(center, factor, offset[0]) if offset else ops.mul(center, factor)

    factors = [variance] if weight is None else [variance, weight]
    scale = elementwise(builder, inverse_deviation, factors)  # type: ignore[arg-type]
    shift = elementwise(builder, negative_shift, [mean, scale, *([bias] if bias is not None else [])])  # type: ignore
    if not computes_per_element(x):
        builder.store_together([scale, shift])
    out = elementwise(
        builder,
        lambda ops, value, factor, offset: ops.fma(value, factor, offset),
        [cast(builder, x, working), reshape(scale, per_channel), reshape(shift, per_channel)],
    )
    return [cast(builder, out, x.dtype), *(filled(builder, 0, meta) for meta in builder.meta[1:])]
