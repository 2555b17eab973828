"""Unbatches the tangents of `torch.autograd.grad(..., is_grads_batched=True)`, and batches the results again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_BATCHED = "Batched"


def is_batched(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autograd batches one of the tensors."""
    return any(torch._C._dispatch_keys(tensor).has(_BATCHED) for tensor in tensors)


def row_by_row(run: Callable[[list[torch.Tensor]], Sequence[Any]], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Call `run` for each row of the tensors, outside of batching, and batch its results in the same way. Some tensors
    may be unbatched. Results are tensors or None; None in some rows only counts as zeros there."""
    with outside_batching() as level:
        # a tensor that is equal in all rows gets one row
        stacked = [torch._remove_batch_dim(tensor, level, 1, 0) for tensor in tensors]
        count = max(tensor.shape[0] for tensor in stacked)
        columns = [[*tensor.unbind()] * (1 if tensor.shape[0] == count else count) for tensor in stacked]
        results = [
            _stacked(found) for found in zip(*(run(list(row)) for row in zip(*columns, strict=True)), strict=True)
        ]
    return [None if found is None else torch._add_batch_dim(found, 0, level) for found in results]


@contextmanager
def outside_batching() -> Iterator[int]:
    """Leave all levels of autograd's batching; yields the innermost level."""
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
