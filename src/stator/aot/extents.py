"""Whether tensors that are written to lie apart from all others in memory: the check of every call, made quick.

For inputs whose layouts are known; where it says no, `inference.writes_are_private` looks closer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Extents:
    """How many bytes each input spans from its first element, and which are written to; for fixed layouts."""

    __slots__ = ("sizes", "written")

    def __init__(self, tensors: Sequence[torch.Tensor], written: Iterable[int]) -> None:
        self.sizes = [_span(tensor) for tensor in tensors]
        chosen = frozenset(written)
        self.written = [at in chosen for at in range(len(tensors))]

    def lie_apart(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether no tensor that is written to shares a byte with the span of another one; given twice counts too."""
        starts = [tensor.data_ptr() for tensor in tensors]
        sizes, written = self.sizes, self.written
        end = end_of_written = 0
        for at in sorted(range(len(starts)), key=starts.__getitem__):
            size = sizes[at]
            if not size:
                continue
            start = starts[at]
            if start < (end if written[at] else end_of_written):
                return False
            stop = start + size
            if stop > end:
                end = stop
            if written[at] and stop > end_of_written:
                end_of_written = stop
        return True


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last one in memory."""
    if not tensor.numel():
        return 0
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return elements * tensor.element_size()
