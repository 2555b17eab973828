"""Writes through an arbitrary layout of a tensor's memory, as writes to the positions of that layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import is_dense, numel

from .decomposition_decorator import decomposes

aten = torch.ops.aten


@decomposes("as_strided_scatter", wide=False)
def as_strided_scatter(
    self: Any, src: Any, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Any:
    """Copy `self` ([*], without gaps), with `src` (of `size`) in the elements at storage_offset + i·stride.

    The operator itself counts from the beginning of the storage, and a buffer may lie inside of a larger one: no
    backend may call the operator.
    """
    if not is_dense(self.shape, self.stride()):
        raise Unsupported("as-strided", "as_strided_scatter into a tensor with gaps in its layout")
    start = 0 if storage_offset is None else storage_offset - self.storage_offset()
    order = sorted(range(self.dim()), key=lambda dim: (-self.stride(dim), -self.shape[dim]))
    inverse = [order.index(dim) for dim in range(len(order))]
    in_order = [self.shape[dim] for dim in order]
    if start == 0 and numel(tuple(size)) == numel(tuple(self.shape)) and is_dense(tuple(size), tuple(stride)):
        by_stride = sorted(range(len(size)), key=lambda dim: (-stride[dim], -size[dim]))
        memory = aten.reshape.default(aten.permute.default(src, by_stride), in_order)
        return aten.permute.default(memory, inverse)
    memory = aten.reshape.default(aten.permute.default(self, order), [-1])
    positions = _positions(size, stride, start, self.device)
    memory = aten.index_put.default(memory, [positions], aten.reshape.default(src, [-1]))
    return aten.permute.default(aten.reshape.default(memory, in_order), inverse)


def _positions(size: Sequence[Any], stride: Sequence[Any], start: Any, device: torch.device) -> Any:
    """Return the positions of the layout's elements: int64, [product of size]."""
    total = aten.full.default([], start, dtype=torch.int64, device=device)
    for dim, (length, step) in enumerate(zip(size, stride, strict=True)):
        along = aten.mul.Tensor(aten.arange.default(length, dtype=torch.int64, device=device), step)
        total = aten.add.Tensor(total, aten.view.default(along, [-1] + [1] * (len(size) - dim - 1)))
    return aten.reshape.default(total, [-1])
