"""Shape rules of sorts, selections by rank, and running sums."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import contiguous_strides, holds, preserved_strides, wrap_dim
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import is_integral

from .operands import fresh, overloads, shape_table, with_in_place

aten = torch.ops.aten
SORT = ("sort",)
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


@shape_rule(aten.sort.default, tags=SORT)
def sort(self: Any, dim: int = -1, descending: bool = False) -> tuple[TensorMeta, TensorMeta]:
    shape = tuple(self.shape)
    wrap_dim(dim, len(shape))
    strides = preserved_strides(shape, self.stride())
    return fresh(shape, self, stride=strides), fresh(shape, self, torch.int64, strides)


@shape_rule(aten.topk.default, tags=SORT)
def topk(self: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[TensorMeta, TensorMeta]:
    shape = list(self.shape)
    dim = wrap_dim(dim, len(shape))
    refuse_if(not (holds(k >= 0) and holds(k <= (shape[dim] if shape else 1))))
    if shape:
        shape[dim] = k
    return fresh(shape, self), fresh(shape, self, torch.int64)


@with_in_place(*overloads("cumsum cumprod"), tags=("reduction",))
def running_sum(self: Any, dim: int, *, dtype: torch.dtype | None = None) -> TensorMeta:
    wrap_dim(dim, len(self.shape))
    return fresh(self.shape, self, dtype or (torch.int64 if is_integral(self.dtype) else self.dtype))


@shape_rule(*overloads("logcumsumexp"), tags=("reduction",))
def logcumsumexp(self: Any, dim: int) -> TensorMeta:
    wrap_dim(dim, len(self.shape))
    return fresh(self.shape, self)


@shape_rule(*overloads("cummax cummin"), tags=("reduction",))
def running_extremum(self: Any, dim: int) -> tuple[TensorMeta, TensorMeta]:
    wrap_dim(dim, len(self.shape))
    return fresh(self.shape, self), fresh(self.shape, self, torch.int64)


@shape_rule(*overloads("quantile quantile.scalar nanquantile nanquantile.scalar"), tags=SORT)
def quantile(
    self: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> TensorMeta:
    """`q` is a number or a tensor. Its dimension is first in the result's shape and last in its memory."""
    check_quantile(self, q, interpolation)
    shape = list(self.shape)
    if dim is None or not shape:
        shape = [1] * len(shape) if keepdim else []
    else:
        axis = wrap_dim(dim, len(shape))
        shape[axis : axis + 1] = [1] if keepdim else []
    if not len(getattr(q, "shape", ())):
        return fresh(shape, self)
    *strides, innermost = contiguous_strides((*shape, q.shape[0]))
    return fresh((q.shape[0], *shape), self, stride=(innermost, *strides))


def check_quantile(self: Any, q: Any, interpolation: str) -> None:
    refuse_if(self.dtype not in (torch.float32, torch.float64) or any(size == 0 for size in self.shape))
    refuse_if(interpolation not in INTERPOLATIONS)
    if hasattr(q, "shape"):
        refuse_if(len(q.shape) > 1 or q.dtype is not self.dtype or q.device != self.device)


shape_table(SORT, {"sort.stable": lambda self, *, stable, dim=-1, descending=False: sort(self, dim, descending)})
