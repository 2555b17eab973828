"""Rearrangements by views, `cat`, gathers, and selections by comparison of indices; copies of views; writes through an
arbitrary layout of a tensor's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import is_dense, numel, wrap_dim
from stator.prims.shape_rules.views import slice_bounds

from .decomposition_decorator import cast, decomposes, decomposition_table, iota

aten = torch.ops.aten


def iota_along(length: Any, dim: int, rank: int, like: Any) -> Any:
    """Return 0 .. length - 1 along one of `rank` dimensions."""
    return aten.view.default(iota(length, like), [length if axis == dim else 1 for axis in range(rank)])


@decomposes("stack", wide=False)
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    dim = wrap_dim(dim, len(tensors[0].shape) + 1)
    return aten.cat.default([aten.unsqueeze.default(tensor, dim) for tensor in tensors], dim)


@decomposes("roll", wide=False)
def roll(self: Any, shifts: Any, dims: Any = ()) -> Any:
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    if 0 in tuple(self.shape) or not len(self.shape):
        return aten.clone.default(self)
    if not dims:
        flat = aten.reshape.default(self, [-1])
        return aten.view.default(rolled(flat, shifts[0], 0), list(self.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        self = rolled(self, shift, wrap_dim(dim, len(self.shape)))
    return self


def rolled(self: Any, shift: Any, dim: int) -> Any:
    size = self.shape[dim]
    start = (size - shift) % size
    if start == 0:
        return aten.clone.default(self)
    return aten.cat.default([aten.slice.Tensor(self, dim, start, size), aten.slice.Tensor(self, dim, 0, start)], dim)


@decomposes("flip", wide=False)
def flip(self: Any, dims: Sequence[int]) -> Any:
    rank = len(self.shape)
    if not rank:
        return aten.clone.default(self)
    result = self
    for dim in dims:
        axis = wrap_dim(dim, rank)
        backwards = aten.rsub.Scalar(iota(self.shape[axis], self), self.shape[axis] - 1)
        result = aten.index.Tensor(result, [None] * axis + [backwards])
    return result if dims else aten.clone.default(self)


@decomposes("repeat", wide=False)
def repeat(self: Any, repeats: Sequence[Any]) -> Any:
    """Split each dimension into (repetitions, size), expand, copy, and merge."""
    missing = len(repeats) - len(self.shape)
    sizes = [1] * missing + list(self.shape)
    split: list[Any] = []
    for size in sizes:
        split += [1, size]
    spread: list[Any] = []
    for count, size in zip(repeats, sizes, strict=True):
        spread += [count, size]
    expanded = aten.expand.default(aten.view.default(self, split), spread)
    copied = aten.clone.default(expanded, memory_format=torch.contiguous_format)
    return aten.view.default(copied, [count * size for count, size in zip(repeats, sizes, strict=True)])


@decomposes("repeat_interleave.self_int", wide=False)
def repeat_interleave(self: Any, repeats: Any, dim: int | None = None, *, output_size: Any = None) -> Any:
    if dim is None:
        self, dim = aten.reshape.default(self, [-1]), 0
    shape = list(self.shape)
    dim = wrap_dim(dim, len(shape))
    expanded = aten.expand.default(
        aten.unsqueeze.default(self, dim + 1), [*shape[: dim + 1], repeats, *shape[dim + 1 :]]
    )
    copied = aten.clone.default(expanded, memory_format=torch.contiguous_format)
    return aten.view.default(copied, [*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]])


def below_diagonal(self: Any, diagonal: Any) -> Any:
    """Return the mask column - row <= diagonal."""
    rows, columns = self.shape[-2], self.shape[-1]
    offset = aten.sub.Tensor(iota(columns, self), aten.unsqueeze.default(iota(rows, self), 1))
    return aten.le.Scalar(offset, diagonal)


@decomposes("masked_fill.Scalar masked_fill.Tensor", wide=False)
def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return aten.where.self(mask, cast(value, self.dtype), self)
    if self.dtype is torch.bool or (isinstance(value, float) and not self.dtype.is_floating_point):
        value = aten.full.default([], value, dtype=self.dtype, device=self.device)
        return aten.where.self(mask, value, self)
    return aten.where.ScalarSelf(mask, value, self)


@decomposes("index_select", wide=False)
def index_select(self: Any, dim: int, index: Any) -> Any:
    rank = len(self.shape)
    if not len(index.shape):
        index = aten.unsqueeze.default(index, 0)
    if not rank:
        return aten.squeeze.dim(aten.index.Tensor(aten.unsqueeze.default(self, 0), [index]), 0)
    return aten.index.Tensor(self, [None] * wrap_dim(dim, rank) + [index])


@decomposes("index_fill.int_Scalar index_fill.int_Tensor", wide=False)
def index_fill(self: Any, dim: int, index: Any, value: Any) -> Any:
    rank = len(self.shape)
    if not rank:
        return aten.view.default(index_fill(aten.view.default(self, [1]), 0, index, value), [])
    dim = wrap_dim(dim, rank)
    value = (
        cast(value, self.dtype)
        if isinstance(value, torch.Tensor)
        else aten.full.default([], value, dtype=self.dtype, device=self.device)
    )
    return aten.index_put.default(self, [None] * dim + [index], value)


@decomposes("one_hot", wide=False)
def one_hot(self: Any, num_classes: Any = -1) -> Any:
    """As in eager, a value that is no class is a RuntimeError on the CPU."""
    if num_classes == -1:
        return NotImplemented
    if self.device.type == "cpu":
        for holds, message in (
            (aten.ge.Scalar(self, 0), "Class values must be non-negative."),
            (aten.lt.Scalar(self, num_classes), "Class values must be smaller than num_classes."),
        ):
            aten._assert_async.msg(aten.all.default(holds), message)
    return cast(aten.eq.Tensor(aten.unsqueeze.default(self, -1), iota(num_classes, self)), torch.int64)


@decomposes("diag_embed", wide=False)
def diag_embed(self: Any, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> Any:
    rank = len(self.shape) + 1
    dim1, dim2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if dim1 > dim2:
        dim1, dim2, offset = dim2, dim1, -offset
    side = self.shape[-1] + abs(offset)
    pad = [offset, 0] if offset >= 0 else [0, -offset]
    spread = aten.constant_pad_nd.default(self, pad, 0)
    order = list(range(rank - 2))
    order.insert(dim2 - 1, rank - 2)
    spread = aten.unsqueeze.default(aten.permute.default(spread, order), dim1)
    rows, columns = iota_along(side, dim1, rank, self), iota_along(side, dim2, rank, self)
    on_diagonal = aten.eq.Tensor(aten.add.Tensor(rows, offset), columns)
    return aten.where.ScalarOther(on_diagonal, spread, 0)


@decomposes("slice_scatter", wide=False)
def slice_scatter(self: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    rank = len(self.shape)
    dim = wrap_dim(dim, rank)
    size = self.shape[dim]
    start, end = slice_bounds(size, start, end)
    if start == 0 and end == size and step == 1:
        return aten.expand.default(cast(src, self.dtype), list(self.shape))
    if src.shape[dim] == 0:
        return aten.clone.default(self)
    position = iota(size, self)
    shifted = aten.sub.Tensor(position, start)
    inside = aten.logical_and.default(aten.ge.Scalar(position, start), aten.lt.Scalar(position, end))
    if step != 1:
        inside = aten.logical_and.default(inside, aten.eq.Scalar(aten.remainder.Scalar(shifted, step), 0))
        shifted = aten.floor_divide.default(shifted, aten.full.default([], step, dtype=torch.int64, device=self.device))
    source = aten.index.Tensor(cast(src, self.dtype), [None] * dim + [clipped(shifted, src.shape[dim])])
    mask = aten.view.default(inside, [size if axis == dim else 1 for axis in range(rank)])
    return aten.where.self(mask, source, self)


def clipped(index: Any, size: Any) -> Any:
    return aten.clamp.default(index, 0, size - 1)


@decomposes("select_scatter", wide=False)
def select_scatter(self: Any, src: Any, dim: int, index: Any) -> Any:
    rank = len(self.shape)
    dim = wrap_dim(dim, rank)
    size = self.shape[dim]
    here = aten.eq.Scalar(iota_along(size, dim, rank, self), index + size if index < 0 else index)
    return aten.where.self(here, aten.unsqueeze.default(cast(src, self.dtype), dim), self)


@decomposes("slice_backward", wide=False)
def slice_backward(grad: Any, input_sizes: Any, dim: int, start: Any, end: Any, step: Any) -> Any:
    base = aten.full.default(list(input_sizes), 0, dtype=grad.dtype, device=grad.device)
    return aten.slice_scatter.default(base, grad, dim, start, end, step)


@decomposes("select_backward", wide=False)
def select_backward(grad: Any, input_sizes: Any, dim: int, index: Any) -> Any:
    base = aten.full.default(list(input_sizes), 0, dtype=grad.dtype, device=grad.device)
    return aten.select_scatter.default(base, grad, dim, index)


@decomposes("pixel_shuffle", wide=False)
def pixel_shuffle(self: Any, upscale_factor: Any) -> Any:
    *batch, channels, height, width = self.shape
    r = upscale_factor
    if r == 1:
        return aten.clone.default(self)
    rank = len(batch)
    split = aten.reshape.default(self, [*batch, channels // (r * r), r, r, height, width])
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    return aten.reshape.default(
        aten.permute.default(split, order), [*batch, channels // (r * r), height * r, width * r]
    )


@decomposes("pixel_unshuffle", wide=False)
def pixel_unshuffle(self: Any, downscale_factor: Any) -> Any:
    *batch, channels, height, width = self.shape
    r = downscale_factor
    if r == 1:
        return aten.clone.default(self)
    rank = len(batch)
    split = aten.reshape.default(self, [*batch, channels, height // r, r, width // r, r])
    order = [*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3]
    return aten.reshape.default(aten.permute.default(split, order), [*batch, channels * r * r, height // r, width // r])


@decomposes("channel_shuffle native_channel_shuffle", wide=False)
def channel_shuffle(self: Any, groups: Any) -> Any:
    batch, channels, *rest = self.shape
    split = aten.reshape.default(self, [batch, groups, channels // groups, *rest])
    return aten.reshape.default(aten.transpose.int(split, 1, 2), list(self.shape))


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


decomposition_table(
    {
        "tril": lambda self, diagonal=0: aten.where.ScalarOther(below_diagonal(self, diagonal), self, 0),
        "triu": lambda self, diagonal=0: aten.where.ScalarSelf(below_diagonal(self, diagonal - 1), 0, self),
        "embedding": lambda weight, indices, *_: aten.index.Tensor(weight, [indices]),
        "take": lambda self, index: aten.index.Tensor(aten.reshape.default(self, [-1]), [index]),
        "narrow_copy": lambda self, dim, start, length: aten.clone.default(
            aten.slice.Tensor(self, dim, start, start + length)
        ),
    },
    wide=False,
)
