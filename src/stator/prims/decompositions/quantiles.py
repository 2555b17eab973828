"""Quantiles by sorting, as in torch's composites but without reading the data of a tensor.

The composites check while tracing that every q lies in [0, 1]; here that is an assertion in the graph.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import wrap_dim
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.sorting import check_quantile

from .decomposition_decorator import cast, decomposes

aten = torch.ops.aten
# Ranks are floats, which count exactly up to this limit; eager refuses more elements too.
MOST_SORTED = 2**24
ROUNDED = {"lower": aten.floor.default, "higher": aten.ceil.default, "nearest": aten.round.default}
BETWEEN = ("linear", "midpoint")


@decomposes("quantile quantile.scalar", wide=False)
def quantile(self: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    """The value below which a share `q` of the values lies; NaN if there is a NaN among the values. See `sorted_at`."""
    check_quantile(self, q, interpolation)
    q = checked_fractions(self, q)
    values = sorted_rows(self, dim, keepdim)
    last = values.shape[-1] - 1
    unknown = aten.any.dim(aten.isnan.default(values), -1, True)
    ranks, unknown = aten.broadcast_tensors.default([aten.mul.Scalar(q, last), unknown])
    return sorted_at(values, aten.masked_fill.Scalar(ranks, unknown, last), q, interpolation)


@decomposes("nanquantile nanquantile.scalar", wide=False)
def nanquantile(
    self: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """Like `quantile` over the values that are not NaN; NaN if there are none."""
    check_quantile(self, q, interpolation)
    q = checked_fractions(self, q)
    values = sorted_rows(self, dim, keepdim)
    known = aten.sum.dim_IntList(aten.logical_not.default(aten.isnan.default(values)), [-1], True)
    ranks = aten.mul.Tensor(q, aten.sub.Scalar(known, 1))
    return sorted_at(values, aten.masked_fill.Scalar(ranks, aten.lt.Scalar(ranks, 0), 0), q, interpolation)


def checked_fractions(self: Any, q: Any) -> Any:
    """Return `q` as a tensor; as in eager, a `q` outside of [0, 1] is a RuntimeError on the CPU."""
    if not isinstance(q, torch.Tensor):
        refuse_if(not 0 <= q <= 1)
        return aten.scalar_tensor.default(q, dtype=self.dtype, device=self.device)
    if self.device.type == "cpu":
        inside = aten.logical_and.default(aten.ge.Scalar(q, 0), aten.le.Scalar(q, 1))
        aten._assert_async.msg(aten.all.default(inside), "quantile() q values must be in the range [0, 1]")
    return q


def sorted_rows(self: Any, dim: int | None, keepdim: bool) -> Any:
    """Sort the values along `dim` (all of them if None) in a last dimension of their own, behind the dimensions of the
    result."""
    rank = len(self.shape)
    kept = list(self.shape)
    if dim is None or not rank:
        rows, kept = aten.reshape.default(self, [-1]), [1] * rank if keepdim else []
    else:
        axis = wrap_dim(dim, rank)
        kept[axis : axis + 1] = [1] if keepdim else []
        last = axis == rank - 1
        rows = self if last else aten.transpose.int(aten.unsqueeze.default(self, -1), axis, -1)
    refuse_if(rows.shape[-1] > MOST_SORTED)
    ordered = aten.sort.default(rows)[0]
    return aten.reshape.default(ordered, [*kept, rows.shape[-1]])


def sorted_at(values: Any, ranks: Any, q: Any, interpolation: str) -> Any:
    """Return the values at fractional ranks: at the rounded rank, or between the neighbours. The dimension of a
    one-dimensional q comes first in the result."""
    if interpolation in BETWEEN:
        before = cast(ranks, torch.int64)
        fraction = aten.sub.Tensor(ranks, before) if interpolation == "linear" else aten.full_like.default(ranks, 0.5)
        after = cast(aten.ceil.default(ranks), torch.int64)
        found = aten.lerp.Tensor(
            aten.gather.default(values, -1, before), aten.gather.default(values, -1, after), fraction
        )
    else:
        found = aten.gather.default(values, -1, cast(ROUNDED[interpolation](ranks), torch.int64))
    if not len(q.shape):
        return aten.squeeze.dim(found, -1)
    return aten.squeeze.dim(aten.transpose.int(aten.unsqueeze.default(found, 0), 0, -1), -1)
