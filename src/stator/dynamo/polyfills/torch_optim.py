"""What torch.optim and the clipping of gradients call in C, as plain Python."""

from __future__ import annotations

from typing import Any

import torch

from ..calling import polyfill


@polyfill(torch._C._group_tensors_by_device_and_dtype)
def group_tensors_by_device_and_dtype(
    tensorlistlist: list[list[torch.Tensor | None]], with_indices: bool = False
) -> dict[Any, Any]:
    """Positions of the lists by device and dtype of the first list's tensors: {(device, dtype): (lists, positions)}."""
    groups: dict[Any, Any] = {}
    for position, first in enumerate(tensorlistlist[0]):
        key = (first.device, first.dtype)  # type: ignore[union-attr]
        if key not in groups:
            groups[key] = ([[] for _ in tensorlistlist], [])
        lists, positions = groups[key]
        for at, tensors in enumerate(tensorlistlist):
            if len(tensors) > 0:
                lists[at].append(tensors[position])
        if with_indices:
            positions.append(position)
    return groups
