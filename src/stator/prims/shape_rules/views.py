"""Shape rules of views: results that share their argument's storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import (
    Sizes,
    always_equal,
    contiguous_strides,
    holds,
    is_unknown,
    numel,
    several_sizes,
    smaller_size,
    surely,
    wrap_dim,
    wrap_dims,
)
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import Refused, refuse_if
from stator.prims.type_promotion import REAL_OF_COMPLEX
from stator.shapes.environment import assume_large_sizes

from .operands import shape_table, view

aten = torch.ops.aten
VIEW = ("view",)


def infer_size(shape: Sequence[Any], own: Sizes) -> Sizes:
    """Replace the one -1 in a shape requested of a tensor of shape `own`. Raises eager's RuntimeError if it cannot fit.

    Leading sizes ahead of the -1 that are equal to the tensor's in the example are relied on to be equal.
    """
    unknown = None
    known, count = 1, numel(own)
    leading = any(type(size) is int and size == -1 for size in shape)
    for dim, size in enumerate(shape):
        leading = leading and dim < len(own) and type(size) is torch.SymInt and surely(size == own[dim])
        if size == -1:
            refuse_if(unknown is not None)
            unknown = dim
        else:
            refuse_if(not holds(size >= 0))
            known = known * size
    if unknown is None:
        refuse_if(not holds(known == count))
        return tuple(shape)
    refuse_if(not holds(known != 0) or not holds(count % known == 0))
    return (*shape[:unknown], count // known, *shape[unknown + 1 :])


def view_strides(shape: Sizes, strides: Sizes, new_shape: Sizes, *, several: bool = False) -> Sizes | None:
    """Return strides with which `new_shape` addresses the original elements; None if only a copy can.

    Walks both shapes from the innermost dimension: the old shape splits into runs that are contiguous in memory, and
    some of the new dimensions must divide each run exactly. What is a view for large sizes is one for all, and a size
    of 1 changes only the stride of its dimension. That it is none is relied on, unless the answer is for `several`
    elements in each dimension.
    """
    if torch.SymInt not in map(type, (*shape, *strides, *new_shape)):
        return _view_strides(shape, strides, new_shape)
    with several_sizes(shape, new_shape):
        found = _view_strides(shape, strides, new_shape)
    if found is not None or several:
        return found
    with assume_large_sizes():
        return _view_strides(shape, strides, new_shape)


def _view_strides(shape: Sizes, strides: Sizes, new_shape: Sizes) -> Sizes | None:
    count = numel(shape)
    if count == 0:
        return strides if shape == new_shape else contiguous_strides(new_shape)
    if not shape:
        return (1,) * len(new_shape)
    result: list[Any] = [0] * len(new_shape)
    new = len(new_shape) - 1
    base = strides[-1]
    run = cut = 1
    for old in range(len(shape) - 1, -1, -1):
        run = run * shape[old]
        if old and (
            always_equal(strides[old - 1], run * base) or shape[old - 1] == 1 or strides[old - 1] == run * base
        ):
            continue
        # the outermost run takes all sizes that are left, because both shapes have equally many elements
        while new >= 0 and (not old or cut < run):
            result[new] = cut * base
            cut = cut * new_shape[new]
            new -= 1
        if not old:
            break
        if cut != run:
            return None
        while new >= 0 and new_shape[new] == 1:
            result[new] = cut * base
            new -= 1
        base = strides[old - 1]
        run = cut = 1
    return tuple(result)


@shape_rule(aten.view.default, aten._unsafe_view.default, tags=VIEW)
def view_(self: Any, size: Sequence[Any]) -> TensorMeta:
    shape = tuple(self.shape)
    size = infer_size(size, shape)
    strides = view_strides(shape, self.stride(), size)
    if strides is None and any(map(is_unknown, (*shape, *size))):
        raise Unsupported("data-dependent", f"whether a tensor of shape {list(shape)} can be viewed as {list(size)}")
    if strides is None:
        raise Refused
    return view(self, size, strides)


@shape_rule(aten._reshape_alias.default, aten._reshape_copy.default, tags=VIEW)
def reshape_alias(self: Any, size: Sequence[Any], stride: Sequence[Any] | None = None) -> TensorMeta:
    if stride is None:
        size = infer_size(size, tuple(self.shape))
        return TensorMeta(tuple(size), contiguous_strides(size), self.dtype, self.device)
    return view(self, size, stride)


@shape_rule(aten.reshape.default, tags=VIEW)
def reshape(self: Any, shape: Sequence[Any]) -> TensorMeta:
    own = tuple(self.shape)
    size = infer_size(shape, own)
    strides = view_strides(own, self.stride(), size)
    if strides is None:
        return TensorMeta(size, contiguous_strides(size), self.dtype, self.device)
    return view(self, size, strides)


@shape_rule(aten.t.default, aten.t_.default, tags=VIEW)
def t(self: Any) -> TensorMeta:
    refuse_if(len(self.shape) > 2)
    return view(self, reversed(self.shape), reversed(self.stride()))


@shape_rule(aten.transpose.int, aten.transpose_.default, tags=VIEW)
def transpose(self: Any, dim0: int, dim1: int) -> TensorMeta:
    shape, stride = list(self.shape), list(self.stride())
    if not shape:
        wrap_dim(dim0, 0)
        wrap_dim(dim1, 0)
        return view(self, shape, stride)
    first, second = wrap_dim(dim0, len(shape)), wrap_dim(dim1, len(shape))
    shape[first], shape[second] = shape[second], shape[first]
    stride[first], stride[second] = stride[second], stride[first]
    return view(self, shape, stride)


@shape_rule(aten.permute.default, tags=VIEW)
def permute(self: Any, dims: Sequence[int]) -> TensorMeta:
    shape, stride = self.shape, self.stride()
    refuse_if(len(dims) != len(shape))
    order = wrap_dims(dims, len(shape))
    return view(self, [shape[dim] for dim in order], [stride[dim] for dim in order])


@shape_rule(aten.expand.default, tags=VIEW)
def expand(self: Any, size: Sequence[Any], *, implicit: bool = False) -> TensorMeta:
    shape, stride = self.shape, self.stride()
    missing = len(size) - len(shape)
    refuse_if(missing < 0)
    sizes: list[Any] = list(size)
    strides: list[Any] = [0] * len(size)
    if not shape:
        return view(self, sizes, strides)
    for dim in range(len(size) - 1, -1, -1):
        target = size[dim]
        if dim >= missing:
            own, step = shape[dim - missing], stride[dim - missing]
            if target == -1:
                target = sizes[dim] = own
        else:
            own = 1
            step = sizes[dim + 1] * strides[dim + 1] if dim + 1 < len(size) else 1
            refuse_if(target < 0)
        if always_equal(own, 1):  # one repeated element fits every target
            strides[dim] = step if always_equal(target, 1) else 0
        elif holds(target == own) if is_unknown(target) or is_unknown(own) else surely(target == own):
            strides[dim] = step
        else:
            refuse_if(not surely(own == 1))
    return view(self, sizes, strides)


@shape_rule(aten.unsqueeze.default, aten.unsqueeze_.default, tags=VIEW)
def unsqueeze(self: Any, dim: int) -> TensorMeta:
    shape, stride = list(self.shape), list(self.stride())
    dim = wrap_dim(dim, len(shape) + 1)
    inner = shape[dim] * stride[dim] if dim < len(shape) else 1
    shape.insert(dim, 1)
    stride.insert(dim, inner)
    return view(self, shape, stride)


@shape_rule(
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze_.default, aten.squeeze_.dim,
    aten.squeeze_.dims, tags=VIEW,
)  # fmt: skip
def squeeze(self: Any, dim: Any = None) -> TensorMeta:
    shape, stride = self.shape, self.stride()
    candidates = range(len(shape)) if dim is None else wrap_dims(dim, len(shape))
    kept = [i for i in range(len(shape)) if not (i in candidates and shape[i] == 1)]
    return view(self, [shape[i] for i in kept], [stride[i] for i in kept])


@shape_rule(aten.slice.Tensor, tags=VIEW)
def slice_(self: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> TensorMeta:
    shape, stride = list(self.shape), list(self.stride())
    refuse_if(not shape)
    dim = wrap_dim(dim, len(shape))
    refuse_if(step <= 0)
    if is_unknown(start) or is_unknown(end) or is_unknown(shape[dim]):
        start, end = _unknown_bounds(shape[dim], start, end)
    else:
        start, end = slice_bounds(shape[dim], start, end)
    offset = self.storage_offset() + start * stride[dim]
    shape[dim] = end - start if step == 1 else (end - start + step - 1) // step
    stride[dim] = stride[dim] * step
    return view(self, shape, stride, offset)


# C++ says so where a slice has no end
_TO_THE_END = torch.iinfo(torch.int64).max


def slice_bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Return the bounds of a slice, clipped as in Python: 0 <= start <= end <= size.

    The first or last k elements are min(size, k) elements, so that one fact less serves short and long dimensions.
    """
    start = 0 if start is None else start
    end = size if end is None or (type(end) is int and end >= _TO_THE_END) else end
    if type(size) is torch.SymInt and type(start) is int:
        if start < 0 and end is size:
            return size - smaller_size(size, -start), size
        if start == 0 and type(end) is int and end > 0:
            return 0, smaller_size(size, end)
    if start < 0:
        start = start + size
        if start < 0:  # without its end: the last n elements of n are a part like others
            start = 0
    elif start > size:
        start = size
    if end is not size:
        if end < 0:
            end = end + size
        if end > size:
            end = size
    if end < start:
        end = start
    return start, end


def _unknown_bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Like `slice_bounds` for bounds known only at run time; relies on nothing but signs."""
    bounds = []
    for bound, missing in ((start, 0), (end, size)):
        bound = missing if bound is None else bound
        if bound < 0:
            bound = torch.sym_max(bound + size, 0)
        bounds.append(bound if surely(bound <= size) else smaller_size(bound, size))
    start, end = bounds
    return start, end if surely(end >= start) else torch.sym_max(start, end)


def _part(self: Any, dim: Any, start: Any, length: Any) -> TensorMeta:
    """Return `length` existing elements of a dimension, from `start` on."""
    dim = wrap_dim(dim, len(self.shape))
    shape, stride = list(self.shape), self.stride()
    shape[dim] = length
    return view(self, shape, stride, self.storage_offset() + start * stride[dim])


@shape_rule(aten.select.int, tags=VIEW)
def select(self: Any, dim: int, index: Any) -> TensorMeta:
    shape, stride = list(self.shape), list(self.stride())
    refuse_if(not shape)
    dim = wrap_dim(dim, len(shape))
    size, step = shape.pop(dim), stride.pop(dim)
    if is_unknown(index):  # eager checks the index, and only the offset depends on it
        return view(self, shape, stride, self.storage_offset() + index * step)
    refuse_if(not holds(index >= -size) or not holds(index < size))
    return view(self, shape, stride, self.storage_offset() + (index + size if index < 0 else index) * step)


@shape_rule(aten.split.Tensor, aten.unsafe_split.Tensor, tags=VIEW)
def split(self: Any, split_size: Any, dim: int = 0) -> list[TensorMeta]:
    refuse_if(not len(self.shape) or split_size < 0)
    dim = wrap_dim(dim, len(self.shape))
    size = self.shape[dim]
    if split_size == 0:
        refuse_if(size != 0)
        return [slice_(self, dim, 0, 0)]
    parts: list[TensorMeta] = []
    start: Any = 0
    while start + split_size < size:
        parts.append(_part(self, dim, start, split_size))
        start = start + split_size
    return [*parts, _part(self, dim, start, size - start)]  # whether the last part is shorter is no question


@shape_rule(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default, tags=VIEW)
def split_with_sizes(self: Any, split_sizes: Sequence[Any], dim: int = 0) -> list[TensorMeta]:
    refuse_if(not len(self.shape))
    dim = wrap_dim(dim, len(self.shape))
    parts = []
    start: Any = 0
    for length in split_sizes:
        refuse_if(not holds(length >= 0))
        parts.append(_part(self, dim, start, length))
        start = start + length
    refuse_if(not holds(start == self.shape[dim]))
    return parts


@shape_rule(aten.unbind.int, tags=VIEW)
def unbind(self: Any, dim: int = 0) -> list[TensorMeta]:
    refuse_if(not len(self.shape))
    dim = wrap_dim(dim, len(self.shape))
    shape, stride = list(self.shape), list(self.stride())
    size, step = shape.pop(dim), stride.pop(dim)
    offset = self.storage_offset()
    return [view(self, shape, stride, offset + index * step) for index in range(size)]


@shape_rule(aten.diagonal.default, tags=VIEW)
def diagonal(self: Any, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> TensorMeta:
    shape, stride = list(self.shape), list(self.stride())
    dim1, dim2 = wrap_dim(dim1, len(shape)), wrap_dim(dim2, len(shape))
    refuse_if(dim1 == dim2)
    rows, columns = shape[dim1], shape[dim2]
    if offset >= 0:
        columns = columns - offset
    else:
        rows = rows + offset
    length = smaller_size(rows, columns)
    start = self.storage_offset()
    if length <= 0:
        length = 0
    else:
        start = start + (offset * stride[dim2] if offset >= 0 else -offset * stride[dim1])
    step = stride[dim1] + stride[dim2]
    kept = [dim for dim in range(len(shape)) if dim not in (dim1, dim2)]
    return view(self, [*(shape[d] for d in kept), length], [*(stride[d] for d in kept), step], start)


@shape_rule(aten.unfold.default, tags=VIEW)
def unfold(self: Any, dimension: int, size: Any, step: Any) -> TensorMeta:
    shape, stride = list(self.shape), list(self.stride())
    dim = wrap_dim(dimension, len(shape))
    extent, unit = (shape[dim], stride[dim]) if shape else (1, 1)
    refuse_if(size > extent or step <= 0)
    if shape:
        shape[dim], stride[dim] = (extent - size) // step + 1, unit * step
    return view(self, [*shape, size], [*stride, unit])


@shape_rule(aten.as_strided.default, aten.as_strided_.default, tags=VIEW)
def as_strided(self: Any, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> TensorMeta:
    refuse_if(len(size) != len(stride))
    return view(self, size, stride, storage_offset)


@shape_rule(aten.alias.default, aten.detach.default, aten.detach_.default, aten.lift_fresh.default, tags=VIEW)
def alias(self: Any) -> TensorMeta:
    return view(self, self.shape, self.stride())


@shape_rule(aten.view_as_real.default, tags=VIEW)
def view_as_real(self: Any) -> TensorMeta:
    refuse_if(isinstance(self, torch.Tensor) and self.is_conj())
    strides = [2 * stride for stride in self.stride()]
    return view(self, (*self.shape, 2), (*strides, 1), 2 * self.storage_offset(), REAL_OF_COMPLEX[self.dtype])


@shape_rule(aten.view_as_complex.default, tags=VIEW)
def view_as_complex(self: Any) -> TensorMeta:
    from_real = {real: complex_ for complex_, real in REAL_OF_COMPLEX.items()}
    refuse_if(self.dtype not in from_real or not len(self.shape) or self.shape[-1] != 2)
    strides = [stride // 2 for stride in self.stride()[:-1]]
    return view(self, self.shape[:-1], strides, self.storage_offset() // 2, from_real[self.dtype])


@shape_rule(aten.view.dtype, tags=VIEW)
def view_dtype(self: Any, dtype: torch.dtype) -> TensorMeta:
    refuse_if(isinstance(self, torch.Tensor) and (self.is_conj() or self.is_neg()) and dtype is not self.dtype)
    own, other = self.dtype.itemsize, dtype.itemsize
    if own == other:
        return view(self, self.shape, self.stride(), dtype=dtype)
    refuse_if(not len(self.shape))
    shape, stride, offset = list(self.shape), list(self.stride()), self.storage_offset()
    refuse_if(stride[-1] != 1)
    if own > other:
        ratio = own // other
        shape[-1] = shape[-1] * ratio
        stride[:-1] = [step * ratio for step in stride[:-1]]
        return view(self, shape, stride, offset * ratio, dtype)
    ratio = other // own
    refuse_if(shape[-1] % ratio != 0 or offset % ratio != 0 or any(step % ratio != 0 for step in stride[:-1]))
    shape[-1] = shape[-1] // ratio
    stride[:-1] = [step // ratio for step in stride[:-1]]
    return view(self, shape, stride, offset // ratio, dtype)


# a TensorMeta has no lazy bits, fake tensors do
shape_table(VIEW, {"_conj _neg_view": alias})
