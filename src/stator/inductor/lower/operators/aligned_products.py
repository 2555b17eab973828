"""Large products on GPUs of sides whose rows begin or end at any address, for which the library takes several times as
long. Sides get aligned rows; the last few rows of a result, or the last few elements of its sums, are products of their
own. `lower.aligned_rows` knows what is gained.

Results with rows of any length are left to kernels of ours (codegen/triton/tiled/tiles.py): the library has none for
these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.inductor.buffers import View
from stator.inductor.lower.aligned_rows import copy_time, gain, unit_of
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.tensor import Tensor
from stator.prims.record import TensorMeta

from .matrices import along, blas_matrix, has_aligned_rows, is_open, row_in_memory, with_aligned_rows
from .views import slice_dim

aten = torch.ops.aten


def aligned_product(builder: LoweringBuilder, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """The product of two matrices from parts with aligned rows. None where this takes longer than it saves, and where
    the library is as quick."""
    meta: TensorMeta = builder.meta
    (rows, columns), depth, unit = meta.shape, a.shape[1], unit_of(meta.dtype)
    steps = [size for side in (a, b) for size in row_in_memory(side)]
    saved = gain((rows, columns, depth), steps, meta.dtype, meta.device)
    if saved == 0:
        return None
    # what the parts of whole 16 bytes leave over: rows where the left side runs along rows, elements of sums where a
    # side runs along these
    by_columns = along(a) == 0
    last = rows - rows % unit if by_columns else rows
    end = depth - depth % unit if not by_columns or along(b) == 0 else depth
    copied = [side for side in (a, b) if not has_aligned_rows(side) and not is_open(side)]
    if sum(copy_time(side.shape, side.dtype) for side in copied) >= saved or 0 in (last, end):
        return None
    if bias is not None and last < rows:
        return None
    a, b = with_aligned_rows(builder, a), with_aligned_rows(builder, b)
    if last < rows:
        return _by_rows(builder, a, b, last, end)
    first = (aten.mm.out, []) if bias is None else (aten.addmm.out, [builder.argument(bias)])
    if end == depth:
        return _multiplied(builder, *first, a, b)
    rest = _multiplied(builder, *first, slice_dim(a, 1, end, depth - end), slice_dim(b, 0, end, depth - end))
    return builder.add_to(rest, aten.addmm.out, _sides(builder, slice_dim(a, 1, 0, end), slice_dim(b, 0, 0, end)))


def _by_rows(builder: LoweringBuilder, a: Tensor, b: Tensor, last: int, end: int) -> Tensor:
    """The rows from `last` on are a product of their own, and so are the elements of the other sums from `end` on."""
    meta: TensorMeta = builder.meta
    (rows, columns), depth = meta.shape, a.shape[1]
    result = builder.new_buffer(meta.shape, (columns, 1), meta.dtype, meta.device)
    builder.store(
        slice_dim(result, 0, last, rows - last),
        _multiplied(builder, aten.mm.out, [], slice_dim(a, 0, last, rows - last), b),
    )
    a, most = slice_dim(a, 0, 0, last), slice_dim(result, 0, 0, last)
    if end < depth:
        rest = _sides(builder, slice_dim(a, 1, end, depth - end), slice_dim(b, 0, end, depth - end))
        builder.product_into(aten.mm.out, rest, most)
        sides = _sides(builder, slice_dim(a, 1, 0, end), slice_dim(b, 0, 0, end))
        builder.product_into(aten.addmm.out, [builder.argument(most), *sides], most)
    else:
        builder.product_into(aten.mm.out, _sides(builder, a, b), most)
    return result


def _sides(builder: LoweringBuilder, a: Tensor, b: Tensor) -> list[str | View]:
    return [blas_matrix(builder, a), blas_matrix(builder, b)]


def _multiplied(builder: LoweringBuilder, target: Any, bias: Sequence[Any], a: Tensor, b: Tensor) -> Tensor:
    made = TensorMeta((a.shape[0], b.shape[1]), (b.shape[1], 1), a.dtype, a.device)
    (result,) = builder.extern(target, [*bias, *_sides(builder, a, b)], {}, [made], style="out")
    assert result is not None
    return result
