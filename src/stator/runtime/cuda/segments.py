"""Segments of programs on GPUs: launches and products in a row, which one call runs, and which become a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import driver

# A callable, the places of its tensors among those of the segment, and the names of its last arguments
Step = tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...]]


def make_segment(device: torch.device, count: int, steps: Sequence[Step]) -> Callable[..., None]:
    """Return a callable that runs the steps on `count` tensors, on the current stream of the device.

    It runs them one by one until a call finds all tensors at the addresses of the call before. It then records them as
    a CUDA graph, which it launches whenever the addresses are these again. It raises what the steps raise.
    """
    return driver.open_driver().Segment(repr(steps[0][0]), device.index or 0, count, tuple(steps))


__all__ = ["Step", "make_segment"]
