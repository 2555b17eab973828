"""Tangents that are batched (`torch.autograd.grad(..., is_grads_batched=True)`): taken apart, and results put together.

What is computed with a row is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_BATCHED = "Batched"


def is_batched(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of them is batched by autograd."""
    return any(torch._C._dispatch_keys(tensor).has(_BATCHED) for tensor in tensors)


def row_by_row(run: Callable[[list[torch.Tensor]], Sequence[Any]], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """`run` of each row of tensors, some of which are batched, outside of the batching; its results, which are tensors
    or None, are batched in the same way. A result that is None in some rows counts as zero there."""
    with outside() as level:
        # one that is the same in all rows gets one row
        stacked = [torch._remove_batch_dim(tensor, level, 1, 0) for tensor in tensors]
        count = max(tensor.shape[0] for tensor in stacked)
        columns = [[*tensor.unbind()] * (1 if tensor.shape[0] == count else count) for tensor in stacked]
        results = [
            _stacked(found) for found in zip(*(run(list(row)) for row in zip(*columns, strict=True)), strict=True)
        ]
    return [None if found is None else torch._add_batch_dim(found, 0, level) for found in results]


@contextmanager
def outside() -> Iterator[int]:
    """Outside of all levels of autograd's batching; gives the innermost."""
    level = torch._C._vmapmode_increment_nesting()
    for _ in range(level):
        torch._C._vmapmode_decrement_nesting()
    try:
        yield level - 1
    finally:
        for _ in range(level - 1):
            torch._C._vmapmode_increment_nesting()


def _stacked(found: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    some = next((one for one in found if one is not None), None)
    return None if some is None else torch.stack([torch.zeros_like(some) if one is None else one for one in found])
