"""Lowerings of the gradients of layer, group and batch normalisation: reductions that share a pass over the data, then
one elementwise expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Index, Tensor
from stator.prims.type_promotion import computation_dtype, is_integral
from stator.shapes.expr import Expr

from ..pointwise import cast, elementwise
from ..reductions import element_count, has_elements, stored_for_rereading
from ..views import expand, reshape
from .normalization import computes_per_element

aten = torch.ops.aten


def two_sums(builder: LoweringBuilder, operands: Sequence[Tensor], dims: Sequence[int], pair: Any) -> list[Tensor]:
    """The sums over `dims` (kept with size one) of the two values from `pair(ops, *elements)`.

    Operands have equal ranks and broadcast against the first. All arithmetic is in the first's computation dtype.
    """
    shape, working = operands[0].shape, computation_dtype(operands[0].dtype)

    def compute(ops: Any, index: Index) -> list[Ref]:
        values = [ops.to_dtype(operand.load(ops, _clipped(index, operand.shape)), working) for operand in operands]
        return [ops.reduce("sum", value) for value in pair(ops, *values)]

    return builder.reduction(compute, operands, shape, tuple(dims), [working, working])


def _clipped(index: Index, shape: Sequence[int]) -> Index:
    return tuple(0 if size == 1 else at for at, size in zip(index, shape, strict=True))


def _normalized_gradient(
    builder: LoweringBuilder,
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    dims: Sequence[int],
) -> Tensor:
    """The gradient of the input, where mean and deviation are taken over `dims`.

    With g = grad * weight and y = (x - mean) * rstd it is rstd * (g - average(g) - y * average(g * y)).
    """
    working = computation_dtype(x.dtype)
    factors = [] if weight is None else [weight]

    def parts(ops: Any, g: Ref, value: Ref, center: Ref, scale: Ref, *factor: Ref) -> tuple[Ref, Ref]:
        g = ops.mul(g, factor[0]) if factor else g
        return g, ops.mul(ops.sub(value, center), scale)

    def pair(ops: Any, *values: Ref) -> tuple[Ref, Ref]:
        g, y = parts(ops, *values)
        return g, ops.mul(g, y)

    plain, along = two_sums(builder, [grad, x, mean, rstd, *factors], dims, pair)
    count = element_count(x, dims)

    def finish(ops: Any, total: Ref, total_along: Ref, scale: Ref, *values: Ref) -> Ref:
        g, y = parts(ops, *values[:3], scale, *values[3:])
        part = _inverse(ops, count, working)
        moved = ops.add(ops.mul(total, part), ops.mul(y, ops.mul(total_along, part)))
        return ops.mul(ops.sub(g, moved), scale)

    operands = [plain, along, rstd, grad, x, mean, *factors]
    return elementwise(builder, finish, [cast(builder, part, working) for part in operands])


def _inverse(ops: Any, count: Any, dtype: torch.dtype) -> Ref:
    """1 / count."""
    if isinstance(count, Expr):
        return ops.div(ops.constant(1, dtype), ops.constant(count, dtype))
    return ops.constant(1 / count, dtype)


def _parameter_gradients(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, dims: Sequence[int]
) -> list[Tensor]:
    """The sums of grad * (x - mean) * rstd and of grad over `dims`, which may be empty."""

    def pair(ops: Any, g: Ref, value: Ref, center: Ref, scale: Ref) -> tuple[Ref, Ref]:
        return ops.mul(g, ops.mul(ops.sub(value, center), scale)), g

    if dims:
        return two_sums(builder, [grad, x, mean, rstd], dims, pair)
    working = computation_dtype(x.dtype)
    operands = [cast(builder, part, working) for part in (grad, x, mean, rstd)]
    return [elementwise(builder, lambda ops, *values: pair(ops, *values)[0], operands), operands[0]]


def _finished(builder: LoweringBuilder, parts: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    """The wanted gradients, with the promised shapes and dtypes."""
    return [
        cast(builder, reshape(part, meta.shape), meta.dtype) if part is not None and flag else None
        for part, meta, flag in zip(parts, builder.meta, wanted, strict=True)
    ]


@lowers(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    builder: LoweringBuilder,
    grad: Tensor,
    x: Tensor,
    normalized: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> Any:
    if not has_elements(x) or is_integral(x.dtype):
        return NotImplemented
    grad, x = stored_for_rereading(builder, grad), stored_for_rereading(builder, x)
    leading = x.rank - len(normalized)
    outer, inner = range(leading), range(leading, x.rank)
    of_x = of_weight = of_bias = None
    if wanted[0]:
        spread = None if weight is None else reshape(weight, (1,) * leading + weight.shape)
        of_x = _normalized_gradient(builder, grad, x, mean, rstd, spread, inner)
    if wanted[1] or wanted[2]:
        of_weight, of_bias = _parameter_gradients(builder, grad, x, mean, rstd, outer)
    return _finished(builder, [of_x, of_weight, of_bias], wanted)


@lowers(aten.native_group_norm_backward.default)
def _group_norm_backward(
    builder: LoweringBuilder,
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    batch: int,
    channels: int,
    spatial: int,
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    if not has_elements(x) or is_integral(x.dtype):
        return NotImplemented
    working, width, rest = computation_dtype(x.dtype), channels // groups, x.shape[2:] or (1,)
    grouped, per_channel = (batch, groups, width), (batch, channels, *((1,) * len(rest)))
    grad, x = (reshape(stored_for_rereading(builder, part), (batch, channels, *rest)) for part in (grad, x))
    mean, rstd = (reshape(cast(builder, part, working), (batch, groups, 1)) for part in (mean, rstd))
    center, positions = expand(mean, grouped), range(2, x.rank)
    if not computes_per_element(x):
        center = builder.copy(center, (channels, width, 1))
    center = reshape(center, per_channel)
    sums = two_sums(
        builder,
        [grad, x, center],
        positions,
        lambda ops, g, value, center: (ops.mul(g, ops.sub(value, center)), g),
    )
    along, plain = (reshape(part, grouped) for part in sums)
    of_x = of_weight = of_bias = None
    if wanted[0]:
        factors = [] if weight is None else [reshape(cast(builder, weight, working), (1, groups, width))]
        factor = elementwise(
            builder,
            lambda ops, scale, _, *weight: ops.mul(scale, *weight) if weight else scale,
            [rstd, along, *factors],  # of the shape of `along`
        )
        totals = two_sums(
            builder,
            [along, plain, factor],
            (2,),
            lambda ops, first, second, scale: (ops.mul(first, scale), ops.mul(second, scale)),
        )
        count = element_count(x, positions) * width
        of_x = _through_statistics(builder, grad, x, center, [rstd, factor, *totals], count)
    if wanted[1] or wanted[2]:
        of_weight, of_bias = two_sums(
            builder, [along, plain, rstd], (0,), lambda ops, first, second, scale: (ops.mul(first, scale), second)
        )
    return _finished(builder, [of_x, of_weight, of_bias], wanted)


@lowers(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    builder: LoweringBuilder,
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    train: bool,
    eps: float,
    wanted: Sequence[bool],
) -> Any:
    """In training, mean and deviation depend on the input; in inference they are constants."""
    if not has_elements(x) or is_integral(x.dtype):
        return NotImplemented
    working = computation_dtype(x.dtype)
    per_channel = (1, x.shape[1], *((1,) * (x.rank - 2)))
    if not train:
        mean, rstd = running_mean, _inverse_deviation(builder, running_var, eps)  # type: ignore[arg-type]
    mean, rstd = (reshape(cast(builder, part, working), per_channel) for part in (mean, rstd))  # type: ignore[arg-type]
    grad, x = stored_for_rereading(builder, grad), stored_for_rereading(builder, x)
    along = plain = None
    if train or wanted[1] or wanted[2]:
        dims = (0, *range(2, x.rank))
        along, plain = two_sums(
            builder, [grad, x, mean], dims, lambda ops, g, value, center: (ops.mul(g, ops.sub(value, center)), g)
        )
    of_x = of_weight = None
    if wanted[0]:
        factor = rstd if weight is None else _times(builder, rstd, reshape(cast(builder, weight, working), per_channel))
        if train:
            totals = [_times(builder, part, factor) for part in (along, plain)]  # type: ignore[arg-type]
            count = element_count(x, (0, *range(2, x.rank)))
            of_x = _through_statistics(builder, grad, x, mean, [rstd, factor, *totals], count)
        else:
            of_x = _times(builder, cast(builder, grad, working), factor)
    if wanted[1]:
        of_weight = _times(builder, along, rstd)  # type: ignore[arg-type]
    return _finished(builder, [of_x, of_weight, plain], wanted)


def _times(builder: LoweringBuilder, first: Tensor, second: Tensor) -> Tensor:
    return elementwise(builder, lambda ops, a, b: ops.mul(a, b), [first, second])


def _inverse_deviation(builder: LoweringBuilder, variance: Tensor, eps: float) -> Tensor:
    working = computation_dtype(variance.dtype)
    return elementwise(
        builder,
        lambda ops, spread: ops.rsqrt(ops.add(spread, ops.constant(eps, working))),
        [cast(builder, variance, working)],
    )


def _through_statistics(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, mean: Tensor, parts: Sequence[Tensor], count: Any
) -> Tensor:
    """grad * factor - average - (x - mean) * slope, with coefficients per channel, or per image and channel.

    `parts` are, of equal rank: rstd, the factor (rstd * weight) per channel, and the sums of grad * (x - mean) * factor
    and of grad * factor over the `count` elements of which the statistics are. The average is the second sum over the
    count, the slope the first times rstd ** 2 over the count.
    """
    working = computation_dtype(x.dtype)
    rstd, factor, along, plain = parts
    slope = elementwise(
        builder,
        lambda ops, total, scale, _: ops.mul(ops.mul(total, _inverse(ops, count, working)), ops.mul(scale, scale)),
        [along, rstd, factor],
    )
    average = elementwise(builder, lambda ops, total, _: ops.mul(total, _inverse(ops, count, working)), [plain, factor])
    if not computes_per_element(x):
        builder.store_together([factor, slope, average])

    def finish(ops: Any, g: Ref, value: Ref, center: Ref, scale: Ref, steep: Ref, middle: Ref) -> Ref:
        moved = ops.add(middle, ops.mul(ops.sub(value, center), steep))
        return ops.sub(ops.mul(g, scale), moved)

    per_channel = (-1, x.shape[1], *((1,) * (x.rank - 2)))
    channels = [reshape(part, per_channel) for part in (factor, slope, average)]
    return elementwise(builder, finish, [cast(builder, grad, working), cast(builder, x, working), mean, *channels])
