"""The gradient of a table's rows, added to another gradient of that table: `stator::add_rows_of_table`.

Met in graphs that have eager's bits, where it is computed in the other gradient's memory (`runtime/table_rows.py`).
Run by itself it is the two operators that it stands for.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import TensorMeta, shape_rule

aten = torch.ops.aten


def _add_rows_of_table(
    total: torch.Tensor, gradient: torch.Tensor, indices: torch.Tensor, padding: int, scaled: bool, settled: bool
) -> torch.Tensor:
    return total + aten.embedding_dense_backward.default(gradient, indices, total.shape[0], padding, scaled)


_library = torch.library.Library("stator", "FRAGMENT")
_library.define(
    "add_rows_of_table(Tensor total, Tensor gradient, Tensor indices, int padding, bool scaled, bool settled) -> Tensor"
)
_library.impl("add_rows_of_table", _add_rows_of_table, "CompositeExplicitAutograd")

add_rows_of_table = torch.ops.stator.add_rows_of_table.default


@shape_rule(add_rows_of_table, tags=("scatter",))
def add_rows_of_table_shape(
    total: Any, gradient: Any, indices: Any, padding: int, scaled: bool, settled: bool
) -> TensorMeta:
    """total + embedding_dense_backward(gradient, indices, rows of the total, padding, scaled). settled: no element of
    the total is a zero with a minus sign."""
    return TensorMeta(tuple(total.shape), tuple(total.stride()), total.dtype, total.device)
