"""The gradient of a table's rows, added to another gradient of the table in place, with the bits of eager's sum.

Eager fills a second table with zeros and adds rows to it. Here only the rows that occur exist.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten


def add_rows(
    total: torch.Tensor,
    gradient: torch.Tensor,
    indices: torch.Tensor,
    padding: int,
    scaled: bool,
    settled: bool,
    *,
    out: torch.Tensor,
) -> None:
    """`total`, which is `out`: total + embedding_dense_backward(gradient, indices, len(total), padding, scaled).

    The operator adds up each row by itself, in the order of the indices and from zero on, so that a smaller table of
    the rows that occur has the same bits. All others are zeros, and adding these changes the sign of a zero with a
    minus sign. settled: there is none. A row that was added up from zero on is never such a zero, so that it makes no
    difference to a row that occurs whether zero was added to the total before.
    """
    rows, places = torch.unique(indices, return_inverse=True)
    at = int(torch.searchsorted(rows, padding)) if padding >= 0 else len(rows)
    left_out = at if at < len(rows) and int(rows[at]) == padding else -1
    few = aten.embedding_dense_backward.default(gradient, places, len(rows), left_out, scaled)
    if not settled:
        out.add_(0.0)
    out.index_add_(0, rows, few)
