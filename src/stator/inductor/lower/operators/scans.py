"""Lowerings of cumulative sums, products, extrema and their like."""

from __future__ import annotations

from typing import Any

import torch

from stator.inductor.devices import traits_of
from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Tensor
from stator.prims.layout import wrap_dim
from stator.prims.type_promotion import computation_dtype
from stator.shapes.expr import ExprLike

aten = torch.ops.aten
_KINDS = {"cumsum": "sum", "cumprod": "prod", "logcumsumexp": "logsumexp"}
_EXTREMA = {"cummax": "max", "cummin": "min"}
_LONGEST = 16384  # elements of a single row that one program computes; the library divides longer ones among programs


def _is_left_to_library(builder: LoweringBuilder, x: Tensor, dim: int, dtype: torch.dtype) -> bool:
    """A single long row on a GPU, and where eager refuses: deterministic algorithms, some dtypes."""
    if not x.rank or dtype is torch.bool or torch.are_deterministic_algorithms_enabled():
        return True
    length, count = x.sizes.hints((x.shape[wrap_dim(dim, x.rank)], x.numel))
    shared = length == count > _LONGEST and traits_of(x.device).programs
    return bool(shared) or any(x.sizes.decide("==", size, 0) for size in x.shape)


@lowers(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def _scan(builder: LoweringBuilder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    meta, name = builder.meta, builder.node.target._schema.name.removeprefix("aten::")
    if _is_left_to_library(builder, x, dim, meta.dtype):
        return NotImplemented
    if name == "logcumsumexp" and not meta.dtype.is_floating_point:
        return NotImplemented
    working = computation_dtype(meta.dtype)
    if x.device.type == "cpu" and meta.dtype is torch.float32:
        working = torch.float64  # as in ATen: rounding errors of a long row would add up

    def compute(ops: Any, element: Ref, place: ExprLike) -> list[Ref]:
        return [ops.scan(_KINDS[name], ops.to_dtype(element, working))]

    target = builder.new_buffer(x.shape, meta.stride, meta.dtype, x.device)
    builder.scan(compute, x, wrap_dim(dim, x.rank), [target])
    return target


@lowers(aten.cummax.default, aten.cummin.default)
def _running_extremum(builder: LoweringBuilder, x: Tensor, dim: int) -> Any:
    """The extremum up to each element, and the last place that has it; a NaN counts as the extremum."""
    metas, name = builder.meta, builder.node.target._schema.name.removeprefix("aten::")
    if _is_left_to_library(builder, x, dim, x.dtype):
        return NotImplemented
    working = computation_dtype(x.dtype)

    def compute(ops: Any, element: Ref, place: ExprLike) -> list[Ref]:
        value = ops.to_dtype(element, working)
        extremum = ops.scan(_EXTREMA[name], value)
        found = ops.eq(value, extremum)
        if working.is_floating_point:
            found = ops.bitwise_or(found, ops.isnan(value))
        at = ops.where(found, ops.index_value(place, torch.int64), ops.constant(0, torch.int64))
        return [extremum, ops.scan("max", at)]

    targets = [builder.new_buffer(x.shape, meta.stride, meta.dtype, x.device) for meta in metas]
    builder.scan(compute, x, wrap_dim(dim, x.rank), targets)
    return tuple(targets)
