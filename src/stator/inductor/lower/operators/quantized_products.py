"""Products of a few rows with a quantized weight, a matrix of bytes or one that loops compute from fewer bytes, as sums
of our own. A library needs the matrix in memory, in the dtype of the rows or in a layout of its own, and making it
takes longer than the sums: these read each byte once and convert it in registers.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.heuristics import FEW_ROWS, FEW_ROWS_ACROSS
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Computed, Index, Tensor
from stator.prims.layout import numel
from stator.prims.type_promotion import computation_dtype

from .pointwise import cast
from .views import permute, reshape, slice_dim

aten = torch.ops.aten


def quantized_product(builder: LoweringBuilder, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """`a @ b + bias` as sums; None where the library is quicker."""
    planned = b.planned()
    most = FEW_ROWS if planned is not None and planned[0][0] == 1 else FEW_ROWS_ACROSS
    plain = bias is None or (bias.shape == b.shape[1:] and bias.dtype is a.dtype)
    if not plain or not _has_few_rows(a, b, most) or not _is_compressed(builder, b):
        return None
    return _sums(builder, a, b, bias, a.dtype)


@lowers(aten._int_mm.default)
def _int_mm(builder: LoweringBuilder, a: Tensor, b: Tensor) -> Any:
    """oneDNN lays the matrix out anew in each call: with one row that takes longer than the sums."""
    return _sums(builder, a, b, None, torch.int32) if _has_few_rows(a, b, 1) else NotImplemented


def _has_few_rows(a: Tensor, b: Tensor, most: int) -> bool:
    known = all(isinstance(size, int) and size > 0 for size in (a.shape[0], *b.shape))
    return known and a.shape[0] <= most and a.device.type == "cpu"


def _is_compressed(builder: LoweringBuilder, b: Tensor) -> bool:
    """True for a matrix that is not in memory, and computed from at most half its bytes."""
    if not isinstance(b.root.source, Computed) or b.heavy or not b.reads:
        return False
    layouts = [builder.buffers[name].layout for name in b.reads]
    read = sum(builder.sizes.hint(numel(layout.size)) * layout.dtype.itemsize for layout in layouts)
    return 2 * read <= b.numel * b.dtype.itemsize


def _sums(builder: LoweringBuilder, a: Tensor, b: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """One loop over the matrix has the sums of all rows, so that each element is converted once."""
    rows, columns, working = a.shape[0], b.shape[1], computation_dtype(dtype)
    a, transposed = cast(builder, a, working), permute(b, (1, 0))
    builder.realize(a)

    def compute(ops: Any, index: Index) -> list[Ref]:
        column, at = index
        element = ops.to_dtype(b.load(ops, (at, column)), working)
        sums = [ops.reduce("sum", ops.mul(a.load(ops, (row, at)), element)) for row in range(rows)]
        if bias is not None:
            added = ops.to_dtype(bias.load(ops, (column,)), working)
            sums = [ops.add(each, added) for each in sums]
        return [ops.to_dtype(each, dtype) for each in sums]

    sums = builder.reduction(compute, [transposed], transposed.shape, (1,), [dtype] * rows)
    if rows == 1:
        return reshape(sums[0], (1, columns))
    result = builder.new_buffer((rows, columns), (columns, 1), dtype, a.device)
    for row, each in enumerate(sums):
        builder.store(slice_dim(result, 0, row, 1), reshape(each, (1, columns)))
    return result
