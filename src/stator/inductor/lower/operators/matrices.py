"""Matrices as arguments of the library's products: layouts that BLAS takes, and rows at aligned addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.inductor.buffers import View
from stator.inductor.lower.aligned_rows import padded_strides, unit_of
from stator.inductor.lower.builder import LoweringBuilder, linear
from stator.inductor.lower.tensor import Computed, Index, Stored, Strides, Tensor, Viewed
from stator.inductor.sizes import SizeKnowledge
from stator.prims.layout import contiguous_strides
from stator.shapes.expr import Symbol
from stator.shapes.simplify import simplify

from .views import permute


def blas_matrix(builder: LoweringBuilder, x: Tensor) -> str | View:
    """A matrix (or a batch of matrices) in a layout for BLAS: one of the last two dimensions has stride one."""
    planned = x.planned()
    if planned is not None and _fits_blas(x.sizes, x.shape[-2:], planned[0][-2:]):
        return builder.argument(x)
    strides = contiguous_strides(x.shape)
    if _varies_faster(x, x.rank - 2):
        # keep a transposed matrix as it is: BLAS takes it just as well
        strides = (*strides[:-2], 1, x.shape[-2] if x.shape[-2] != 0 else 1)
    return builder.argument(x, strides)


def _varies_faster(x: Tensor, dim: int) -> bool:
    """True if memory under x is contiguous along `dim`, and not along the last dimension."""
    symbols = tuple(Symbol(f"i{at}") for at in range(x.rank))
    ranges = x.sizes.ranges(symbols, x.shape)
    index: Index = symbols
    tensor = x
    while isinstance(tensor.source, Viewed):
        index = tensor.source.remap(index, ranges)
        tensor = tensor.source.base
    strides = tensor.source.strides if isinstance(tensor.source, Stored) else tensor.strides
    position = simplify(linear(Stored("", strides), index), ranges)
    return position.coefficient(symbols[dim]) == 1 and position.coefficient(symbols[-1]) != 1


def _fits_blas(sizes: SizeKnowledge, shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    rows, columns = shape
    down, across = strides
    return (across == 1 and _at_least(sizes, down, columns)) or (down == 1 and _at_least(sizes, across, rows))


def _at_least(sizes: SizeKnowledge, stride: Any, size: Any) -> bool:
    return sizes.known(">=", stride, size) and sizes.known(">=", stride, 1)


# ---- rows at aligned addresses


def along(x: Tensor) -> int:
    """The dimension along which memory under the matrix, as BLAS would be given it, is contiguous."""
    return 1 if _layout(x)[0][1] == 1 else 0


def row_in_memory(x: Tensor) -> tuple[Any, Any]:
    """The distance and the length of rows (or columns) in that memory."""
    return _layout(x)[0][1 - along(x)], x.shape[along(x)]


def has_aligned_rows(x: Tensor) -> bool:
    """True if rows (or columns) lie, or will lie, at multiples of 16 bytes."""
    strides, offset = _layout(x)
    return all(isinstance(step, int) and step % unit_of(x.dtype) == 0 for step in (strides[1 - along(x)], offset))


def is_open(x: Tensor) -> bool:
    """True if the matrix is not in memory yet, so that it can be stored in any layout."""
    return isinstance(x.root.source, Computed)


def with_aligned_rows(builder: LoweringBuilder, x: Tensor) -> Tensor:
    """The matrix in memory with such rows. What lies in memory otherwise is copied, once."""
    root = x.root
    if not has_aligned_rows(x) and is_open(x) and row_in_memory(x)[0] == root.shape[-1] and _is_row_major(root):
        root.lay_out(padded_strides(root.shape, root.dtype))
    if has_aligned_rows(x) and x.planned() is not None:
        builder.argument(x)
        return x
    if along(x) == 0:  # one copy serves a matrix and its transpose
        return permute(with_aligned_rows(builder, permute(x, (1, 0))), (1, 0))
    place = x.resolved()
    found = builder.aligned_copies.get((place, x.shape))
    if place is None or found is None:
        found = builder.copy(x, padded_strides(x.shape, x.dtype))
        builder.aligned_copies[place, x.shape] = found
    return found


def _layout(x: Tensor) -> tuple[Strides, Any]:
    planned = x.planned()
    if planned is not None and _fits_blas(x.sizes, x.shape[-2:], planned[0][-2:]):
        return planned
    return contiguous_strides(x.shape), 0


def _is_row_major(x: Tensor) -> bool:
    return all(isinstance(size, int) for size in x.shape) and x.own_strides == contiguous_strides(x.shape)
