"""Lowerings of gathers and scatters: loads and stores at positions that are data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.prims.layout import broadcast_shapes, contiguous_strides, wrap_dim
from stator.prims.type_promotion import computation_dtype

from .builder import Builder, linear, loop_order, loop_variables
from .pointwise import cast
from .registry import lowers
from .tensor import Index, Stored, Tensor
from .views import expand, reshape

aten = torch.ops.aten
_INDEX_DTYPES = (torch.int64, torch.int32)


def position(ops: Any, index: Ref, size: int, wraps: bool) -> Any:
    """An index value as an index expression; out of range is an IndexError. `wraps`: negatives count from the end."""
    if not wraps:
        # a negative index becomes one that is too large, so that it fails as in eager
        dtype = ops.dtype(index)
        negative = ops.lt(index, ops.constant(0, dtype))
        index = ops.where(negative, ops.constant(size, dtype), index)
    return ops.indirect(index, size, True)


def _source(builder: Builder, x: Tensor) -> Tensor:
    """What is gathered from: in memory, unless it is trivial to compute anywhere."""
    if x.resolved() is None and (x.heavy or len(x.work) > 1):
        builder.realize(x)
    return x


@lowers(aten.embedding.default)
def _embedding(
    builder: Builder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    return _rows(builder, weight, 0, indices, wraps=False)


@lowers(aten.index_select.default)
def _index_select(builder: Builder, x: Tensor, dim: int, indices: Tensor) -> Any:
    if x.rank == 0 or indices.rank != 1:
        return NotImplemented
    return _rows(builder, x, wrap_dim(dim, x.rank), indices, wraps=False)


def _rows(builder: Builder, x: Tensor, dim: int, indices: Tensor, wraps: bool) -> Any:
    """`x` with dimension `dim` replaced by the dimensions of `indices`."""
    if indices.dtype not in _INDEX_DTYPES:
        return NotImplemented
    x = _source(builder, x)

    def inner(ops: Any, index: Index) -> Ref:
        at = indices.load(ops, index[dim : dim + indices.rank])
        row = position(ops, at, x.shape[dim], wraps)
        return x.load(ops, (*index[:dim], row, *index[dim + indices.rank :]))

    shape = (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :])
    result = builder.computed(inner, [x, indices], shape, x.dtype, x.device, heavy=True)
    result.strides, result.deviates = builder.meta.stride, False
    return result


@lowers(aten.gather.default)
def _gather(builder: Builder, x: Tensor, dim: int, indices: Tensor, *, sparse_grad: bool = False) -> Any:
    if x.rank == 0 or indices.rank == 0 or indices.dtype not in _INDEX_DTYPES:
        return NotImplemented
    dim = wrap_dim(dim, x.rank)
    x = _source(builder, x)

    def inner(ops: Any, index: Index) -> Ref:
        at = position(ops, indices.load(ops, index), x.shape[dim], wraps=False)
        return x.load(ops, (*index[:dim], at, *index[dim + 1 :]))

    result = builder.computed(inner, [x, indices], indices.shape, x.dtype, x.device, heavy=True)
    result.strides, result.deviates = builder.meta.stride, False
    return result


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(builder: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    plan = _advanced(x, indices)
    if plan is None:
        return NotImplemented
    tensors, dims, shape, first = plan
    x = _source(builder, x)
    rank = len(shape)
    rest = [dim for dim in range(x.rank) if dim not in dims]
    full = (*[x.shape[dim] for dim in rest[:first]], *shape, *[x.shape[dim] for dim in rest[first:]])

    def inner(ops: Any, index: Index) -> Ref:
        outer = index[first : first + rank]
        others = iter((*index[:first], *index[first + rank :]))
        where: list[Any] = [0] * x.rank
        for dim in rest:
            where[dim] = next(others)
        for dim, tensor in zip(dims, tensors, strict=True):
            where[dim] = position(ops, tensor.load(ops, outer), x.shape[dim], wraps=True)
        return x.load(ops, tuple(where))

    result = builder.computed(inner, [x, *tensors], full, x.dtype, x.device, heavy=True)
    result.strides, result.deviates = builder.meta.stride, False
    return result


def _advanced(
    x: Tensor, indices: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[int], tuple[int, ...], int] | None:
    """Index tensors broadcast together, their dimensions, the common shape, and where it goes in the result."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    if not tensors or any(tensor.dtype not in _INDEX_DTYPES for tensor in tensors):
        return None
    shape: tuple[int, ...] = ()
    for tensor in tensors:
        shape = broadcast_shapes(shape, tensor.shape)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return [expand(tensor, shape) for tensor in tensors], dims, shape, dims[0] if adjacent else 0


# ---- scatters: a copy, then stores into it


def _into_copy(
    builder: Builder, x: Tensor, shape: Sequence[int], where: Any, value: Any, mode: str | None, work: frozenset[str]
) -> Tensor:
    """A copy of `x` into which `value(ops, index)` is stored at `where(ops, index)` for every index of `shape`."""
    target = builder.copy(x, builder.meta.stride)
    memory: Stored = target.source  # type: ignore[assignment]
    order = loop_order(shape, contiguous_strides(tuple(shape)))
    variables, index = loop_variables(order, shape)

    def body(ops: Any) -> None:
        stored = value(ops, index)
        ops.store(memory.buffer, linear(memory, where(ops, index)), stored, mode)

    frozen = builder.freeze(body, variables, tuple(shape[dim] for dim in order))
    builder.emit((memory.buffer,), frozen, work)
    return target


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(
    builder: Builder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    if not accumulate and len(indices) == 1 and values.numel == 1 and _is_mask_of(indices[0], x):
        return _masked_assignment(builder, x, indices[0], values)
    plan = _advanced(x, indices)
    if plan is None or (accumulate and not _can_add(x.dtype)):
        return NotImplemented
    tensors, dims, shape, first = plan
    if not accumulate and _product(shape) > 1:
        return NotImplemented  # the last of several writes to one place must win: parallel loops cannot promise it
    rank = len(shape)
    rest = [dim for dim in range(x.rank) if dim not in dims]
    full = (*[x.shape[dim] for dim in rest[:first]], *shape, *[x.shape[dim] for dim in rest[first:]])
    spread = expand(cast(builder, values, x.dtype), full)

    def where(ops: Any, index: Index) -> Index:
        others = iter((*index[:first], *index[first + rank :]))
        result: list[Any] = [0] * x.rank
        for dim in rest:
            result[dim] = next(others)
        for dim, tensor in zip(dims, tensors, strict=True):
            result[dim] = position(ops, tensor.load(ops, index[first : first + rank]), x.shape[dim], wraps=True)
        return tuple(result)

    mode = "add" if accumulate else None
    return _into_copy(builder, x, full, where, spread.load, mode, spread.work)


def _is_mask_of(index: Tensor | None, x: Tensor) -> bool:
    return index is not None and index.dtype is torch.bool and index.shape == x.shape[: index.rank]


def _masked_assignment(builder: Builder, x: Tensor, mask: Any, value: Tensor) -> Tensor:
    """`x[mask] = number`, where the mask covers the leading dimensions."""
    spread = reshape(mask, (*mask.shape, *([1] * (x.rank - mask.rank))))
    number = reshape(cast(builder, value, x.dtype), ())
    return builder.pointwise(lambda ops, old, test, new: ops.where(test, new, old), [x, spread, number], x.dtype)


@lowers(aten.scatter_add.default)
def _scatter_add(builder: Builder, x: Tensor, dim: int, indices: Tensor, source: Tensor) -> Any:
    if not _can_add(x.dtype) or x.rank == 0 or indices.dtype not in _INDEX_DTYPES:
        return NotImplemented
    dim = wrap_dim(dim, x.rank)

    def where(ops: Any, index: Index) -> Index:
        at = position(ops, indices.load(ops, index), x.shape[dim], wraps=False)
        return (*index[:dim], at, *index[dim + 1 :])

    return _into_copy(builder, x, indices.shape, where, source.load, "add", source.work | indices.work)


def _can_add(dtype: torch.dtype) -> bool:
    """Is there an atomic addition for it?"""
    return computation_dtype(dtype) is dtype and dtype is not torch.bool


def _product(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
