"""Shape rules of operators that rearrange whole tensors into new ones: cat, stack, pad, roll, flip, repeat, tril."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.prims.layout import (
    Sizes,
    always_equal,
    channels_last_strides,
    contiguous_strides,
    dense_strides,
    elementwise_strides,
    has_zero,
    holds,
    numel,
    preserved_strides,
    strides_like_channels_last,
    suggested_strides,
    surely,
    wrap_dim,
    wrap_dims,
)
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import check_range, common_dtype

from .operands import common_device, fresh, overloads, shape_table, with_in_place
from .views import as_strided, diagonal, select, slice_, slice_bounds, unsqueeze, view_strides

aten = torch.ops.aten
INDEX = ("index",)


def all_channels_last(layouts: Sequence[tuple[Sizes, Sizes]]) -> bool:
    """Whether every (shape, strides) suggests the channels-last format."""
    return all(strides_like_channels_last(shape, strides) for shape, strides in layouts)


@shape_rule(aten.cat.default, tags=INDEX)
def cat(tensors: Sequence[Any], dim: int = 0) -> TensorMeta:
    refuse_if(not tensors)
    layouts = [(tuple(tensor.shape), tensor.stride()) for tensor in tensors]
    refuse_if(any(not shape for shape, _ in layouts))
    first: Sizes | None = None
    total: Any = 0
    for shape, _ in layouts:
        if len(shape) == 1 and surely(shape[0] == 0):  # eager skips these whatever the rank of the others
            continue
        if first is None:
            first = shape
            dim = wrap_dim(dim, len(shape))
        else:
            refuse_if(len(shape) != len(first))
            for axis, (size, other) in enumerate(zip(first, shape, strict=True)):
                refuse_if(axis != dim and not holds(size == other))
        total = total + shape[dim]
    dtype = common_dtype(tensors)
    device = common_device(tensors)
    if first is None:
        return TensorMeta((0,), (1,), dtype, device)
    result = (*first[:dim], total, *first[dim + 1 :])
    strides = channels_last_strides(result) if all_channels_last(layouts) else contiguous_strides(result)
    return TensorMeta(result, strides, dtype, device)


@shape_rule(aten.stack.default, tags=INDEX)
def stack(tensors: Sequence[Any], dim: int = 0) -> TensorMeta:
    refuse_if(not tensors)
    shape = tuple(tensors[0].shape)
    for own in (tuple(tensor.shape) for tensor in tensors):
        refuse_if(len(own) != len(shape) or not all(holds(a == b) for a, b in zip(own, shape, strict=True)))
    dim = wrap_dim(dim, len(shape) + 1)
    result = (*shape[:dim], len(tensors), *shape[dim:])
    strides = contiguous_strides(result)
    if dim < len(shape):  # eager concatenates along the dimension and splits afterwards
        if all_channels_last([(shape, tensor.stride()) for tensor in tensors]):
            joined = (*shape[:dim], len(tensors) * shape[dim], *shape[dim + 1 :])
            split = view_strides(joined, channels_last_strides(joined), result)
            if split is not None:
                strides = split
    else:
        lifted = [unsqueeze(tensor, dim) for tensor in tensors]
        if all_channels_last([(meta.shape, meta.stride) for meta in lifted]):
            strides = channels_last_strides(result)
    return TensorMeta(result, strides, common_dtype(tensors), common_device(tensors))


@shape_rule(aten.constant_pad_nd.default, tags=INDEX)
def constant_pad_nd(self: Any, pad: Sequence[Any], value: Any = 0) -> TensorMeta:
    shape = list(self.shape)
    if len(pad):
        check_range(self.dtype, value)
    refuse_if(len(pad) % 2 or len(pad) // 2 > len(shape))
    for axis in range(len(pad) // 2):
        dim = len(shape) - 1 - axis
        amounts = pad[2 * axis : 2 * axis + 2]
        size = shape[dim] + sum(amounts)
        if not (any(always_equal(amount, 0) for amount in amounts) and surely(size >= 0)):
            removed = [amount for amount in amounts if surely(amount < 0)]
            refuse_if(removed and not holds(shape[dim] + sum(removed) >= 0))
        refuse_if(not holds(size >= 0))
        shape[dim] = size
    own, result = self.stride(), tuple(shape)
    padded = suggested_strides(tuple(self.shape), own, result)
    symbolic = torch.SymInt in map(type, pad)
    if symbolic and always_equal(padded, dense_strides(result, own)) and not has_zero(result):
        return fresh(shape, self, stride=padded)  # a copy of the narrowed tensor has these strides, too
    narrows = all(amount <= 0 for amount in pad)
    return fresh(shape, self, stride=preserved_strides(result, own) if narrows else padded)


@shape_rule(aten.roll.default, tags=INDEX)
def roll(self: Any, shifts: Any, dims: Any = ()) -> TensorMeta:
    shape = tuple(self.shape)
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    refuse_if(not shifts)
    if not dims and len(shifts) == 1:
        return fresh(shape, self)
    refuse_if(len(shifts) != len(dims))
    strides = self.stride()
    for shift, dim in zip(shifts, dims, strict=True):
        refuse_if(not shape)
        strides = rolled_strides(shape, strides, shift, wrap_dim(dim, len(shape)))
    return fresh(shape, self, stride=strides)


def rolled_strides(shape: Sizes, strides: Sizes, shift: Any, dim: int) -> Sizes:
    """Return the strides after rolling one dimension, which eager does by concatenating two slices."""
    if numel(shape) == 0:
        return preserved_strides(shape, strides)
    start = (shape[dim] - shift) % shape[dim]
    pieces = [(*shape[:dim], length, *shape[dim + 1 :]) for length in (shape[dim] - start, start)]
    like_channels_last = all(strides_like_channels_last(piece, strides) for piece in pieces)
    return channels_last_strides(shape) if like_channels_last else contiguous_strides(shape)


@shape_rule(*overloads("glu"), tags=("pointwise",))
def glu(self: Any, dim: int = -1) -> TensorMeta:
    shape = list(self.shape)
    refuse_if(not shape)
    dim = wrap_dim(dim, len(shape))
    refuse_if(shape[dim] % 2 != 0)
    half = fresh((*shape[:dim], shape[dim] // 2, *shape[dim + 1 :]), self)
    return replace(half, stride=elementwise_strides(half.shape, ((half.shape, self.stride()),)))


@shape_rule(aten.flip.default, tags=INDEX)
def flip(self: Any, dims: Sequence[int]) -> TensorMeta:
    shape = tuple(self.shape)
    wrap_dims(dims, len(shape))
    return fresh(shape, self, stride=preserved_strides(shape, self.stride()))


@shape_rule(aten.repeat.default, tags=INDEX)
def repeat(self: Any, repeats: Sequence[Any]) -> TensorMeta:
    missing = len(repeats) - len(self.shape)
    refuse_if(missing < 0)
    padded = (1,) * missing + tuple(self.shape)
    return fresh([size * count for size, count in zip(padded, repeats, strict=True)], self)


@shape_rule(*overloads("repeat_interleave.self_int"), tags=INDEX)
def repeat_interleave(self: Any, repeats: Any, dim: int | None = None, *, output_size: Any = None) -> TensorMeta:
    shape = tuple(self.shape)
    if dim is None:
        return fresh((numel(shape) * repeats,), self)
    dim = wrap_dim(dim, len(shape))
    return fresh((*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]), self)


@with_in_place(*overloads("tril triu"), tags=("pointwise",))
def triangle(self: Any, diagonal: Any = 0) -> TensorMeta:
    refuse_if(len(self.shape) < 2)
    return fresh(self.shape, self)


@shape_rule(aten.diag_embed.default, tags=INDEX)
def diag_embed(self: Any, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> TensorMeta:
    shape = list(self.shape)
    rank = len(shape) + 1
    dim1, dim2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    refuse_if(dim1 == dim2)
    side = shape.pop() + (offset if offset >= 0 else -offset)
    for dim in sorted((dim1, dim2)):
        shape.insert(dim, side)
    return fresh(shape, self)


@shape_rule(*overloads("pixel_shuffle"), tags=INDEX)
def pixel_shuffle(self: Any, upscale_factor: Any) -> TensorMeta:
    *batch, channels, height, width = self.shape
    area = upscale_factor * upscale_factor
    refuse_if(channels % area != 0)
    shape = (*batch, channels // area, height * upscale_factor, width * upscale_factor)
    return fresh(shape, self, stride=_shuffled_strides(self, shape))


@shape_rule(*overloads("pixel_unshuffle"), tags=INDEX)
def pixel_unshuffle(self: Any, downscale_factor: Any) -> TensorMeta:
    *batch, channels, height, width = self.shape
    refuse_if(height % downscale_factor != 0 or width % downscale_factor != 0)
    area = downscale_factor * downscale_factor
    shape = (*batch, channels * area, height // downscale_factor, width // downscale_factor)
    if downscale_factor == 1 and 0 in shape:  # a clone
        return fresh(shape, self, stride=preserved_strides(tuple(shape), self.stride()))
    return fresh(shape, self, stride=_shuffled_strides(self, shape))


def _shuffled_strides(self: Any, shape: Sizes) -> Sizes:
    """The kernels of CPUs keep the format channels-last; GPUs copy a permuted view to rows."""
    if self.device.type == "cuda":
        return contiguous_strides(shape)
    return suggested_strides(tuple(self.shape), self.stride(), shape)


@shape_rule(*overloads("channel_shuffle"), tags=INDEX)
def channel_shuffle(self: Any, groups: Any) -> TensorMeta:
    shape = tuple(self.shape)
    refuse_if(shape[1] % groups != 0)
    return fresh(shape, self, stride=suggested_strides(shape, self.stride(), shape))


@shape_rule(*overloads("block_diag"), tags=INDEX)
def block_diag(tensors: Sequence[Any]) -> TensorMeta:
    rows: Any = 0
    columns: Any = 0
    for tensor in tensors:
        shape = (1,) * (2 - len(tensor.shape)) + tuple(tensor.shape)
        rows, columns = rows + shape[0], columns + shape[1]
    return TensorMeta(
        (rows, columns), contiguous_strides((rows, columns)), common_dtype(tensors), common_device(tensors)
    )


def _scatter_into(view: Callable[..., TensorMeta], name: str) -> None:
    """Register the rule of an operator that writes to a view of a copy."""

    @shape_rule(*overloads(f"{name}_scatter"), tags=("scatter",))
    def rule(self: Any, src: Any, *where: Any, **options: Any) -> TensorMeta:
        """A copy that keeps the offset and even the gaps of the layout."""
        expected, given = view(self, *where, **options).shape, tuple(src.shape)
        refuse_if(len(expected) != len(given) or not all(holds(a == b) for a, b in zip(expected, given, strict=True)))
        shape, strides = tuple(self.shape), self.stride()
        if any(stride == 0 and size > 1 for size, stride in zip(shape, strides, strict=True)):
            return fresh(shape, self, stride=preserved_strides(shape, strides))
        return TensorMeta(shape, strides, self.dtype, self.device, self.storage_offset())


for _name, _view in {"slice": slice_, "select": select, "diagonal": diagonal, "as_strided": as_strided}.items():
    _scatter_into(_view, _name)


@shape_rule(*overloads("narrow_copy"), tags=INDEX)
def narrow_copy(self: Any, dim: int, start: Any, length: Any) -> TensorMeta:
    shape = list(self.shape)
    dim = wrap_dim(dim, len(shape))
    refuse_if(not holds(start >= -shape[dim]) or not holds(start <= shape[dim]))
    begin, end = slice_bounds(shape[dim], start, start + length)
    refuse_if(end - begin != length)
    shape[dim] = length
    return fresh(shape, self)


@shape_rule(*overloads("rot90"), tags=INDEX)
def rot90(self: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorMeta:
    """A flip; for an odd number of quarter turns also a transpose."""
    rank = len(self.shape)
    refuse_if(len(dims) != 2 or rank < 2)
    first, second = wrap_dim(dims[0], rank), wrap_dim(dims[1], rank)
    refuse_if(first == second)
    if k % 4 == 0:
        return fresh(self.shape, self)
    flipped = flip(self, (first,))
    if k % 4 == 2:
        return flipped
    order = list(range(rank))
    order[first], order[second] = second, first
    return fresh([flipped.shape[dim] for dim in order], self, stride=tuple(flipped.stride[dim] for dim in order))


@shape_rule(*overloads("_chunk_cat"), tags=INDEX)
def chunk_cat(tensors: Sequence[Any], dim: int, num_chunks: Any) -> TensorMeta:
    """Each tensor is padded and cut into chunks along `dim`; chunks with equal numbers are flattened and
    concatenated."""
    refuse_if(not tensors)
    if dim < 0:
        dim = dim + len(tensors[0].shape)
    refuse_if(num_chunks <= 0)
    leading = tuple(tensors[0].shape)[:dim]
    for tensor in tensors:
        shape = tuple(tensor.shape)
        refuse_if(dim >= len(shape) or 0 in shape or tensor.dtype is not tensors[0].dtype or shape[:dim] != leading)
    width: Any = 0
    for tensor in tensors:
        length, *inner = tuple(tensor.shape)[dim:]
        width = width + (length + num_chunks - 1) // num_chunks * numel(tuple(inner))
    return fresh((*leading, num_chunks, width), tensors[0])


shape_table(
    ("scatter",),
    {
        "slice_backward select_backward diagonal_backward unfold_backward": lambda grad, sizes, *_: fresh(sizes, grad),
    },
)
