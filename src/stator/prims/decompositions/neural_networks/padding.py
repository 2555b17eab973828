"""Padding by reflection and replication: gathers along each dimension at computed positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import decomposes

aten = torch.ops.aten
Place = Callable[[Any, Any], Any]


def gathered(self: Any, padding: Sequence[Any], place: Place) -> Any:
    """Gather along each padded dimension. `place(position, size)` maps positions from -left to size + right - 1 to
    elements."""
    result = self
    rank = len(self.shape)
    for step in range(len(padding) // 2):
        left, right = padding[2 * step], padding[2 * step + 1]
        dim = rank - 1 - step
        size = self.shape[dim]
        if left == 0 and right == 0:
            continue
        position = aten.arange.start_step(-left, size + right, 1, dtype=torch.int64, device=self.device)
        result = aten.index.Tensor(result, [*[None] * dim, place(position, size)])
    result = aten.clone.default(self) if result is self else result
    return result


def nothing_to_read(self: Any, padding: Sequence[Any]) -> bool:
    """Whether a padded dimension is empty."""
    return 0 in tuple(self.shape[-(len(padding) // 2) :])


def replicated(position: Any, size: Any) -> Any:
    return aten.clamp.default(position, 0, size - 1)


def reflected(position: Any, size: Any) -> Any:
    """Reflect positions without repeating the border."""
    inner = aten.rsub.Scalar(aten.abs.default(position), size - 1)
    return aten.rsub.Scalar(aten.abs.default(inner), size - 1)


@decomposes("replication_pad1d replication_pad2d replication_pad3d", wide=False)
def replication_pad(self: Any, padding: Sequence[Any]) -> Any:
    return NotImplemented if nothing_to_read(self, padding) else gathered(self, padding, replicated)


@decomposes("reflection_pad1d reflection_pad2d reflection_pad3d", wide=False)
def reflection_pad(self: Any, padding: Sequence[Any]) -> Any:
    return NotImplemented if nothing_to_read(self, padding) else gathered(self, padding, reflected)
