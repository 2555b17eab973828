"""Whether inputs that a graph writes to overlap others in memory: the check of every call.

`InputSpans` is quick, for inputs of known layouts. Where its answer is no, `are_disjoint` looks at the elements.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import extent
from stator.prims.record import TensorMeta
from stator.prims.shared_memory import may_meet
from stator.runtime.launch import spans_are_disjoint


class OverlappingInputs(Unsupported):
    """A graph writes to an input that shares memory with another input."""

    def __init__(self) -> None:
        super().__init__(
            "overlapping-inputs",
            "the graph writes to an input that shares its memory with another input",
            hint="pass a clone, or write to the base tensor only",
        )


class InputSpans:
    """How many bytes each input spans from its first element, and which inputs are written to. varying: positions of
    inputs whose sizes differ from call to call."""

    __slots__ = ("order", "sizes", "varying", "written")

    def __init__(self, tensors: Sequence[torch.Tensor], written: Iterable[int], varying: Collection[int] = ()) -> None:
        self.sizes = array("q", [_span(tensor) for tensor in tensors])
        self.varying = varying
        chosen = frozenset(written)
        self.written = bytes([at in chosen for at in range(len(tensors))])
        self.order = bytearray(array("q", range(len(tensors))))

    def are_disjoint(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether no written tensor shares a byte with the span of another. A tensor given twice overlaps itself."""
        sizes = self.sizes
        if self.varying:
            sizes = sizes[:]
            for at in self.varying:
                sizes[at] = _span(tensors[at])
        return spans_are_disjoint(tensors, sizes.tobytes(), self.written, self.order)


def are_disjoint(tensors: Sequence[torch.Tensor], written: Sequence[bool]) -> bool:
    """Whether no written tensor shares an element with another, as far as is easily decided. Columns of one matrix are
    disjoint although their spans overlap."""
    starts = [tensor.data_ptr() for tensor in tensors]
    spans = [(start, start + _span(tensor)) for start, tensor in zip(starts, tensors, strict=True)]
    order = sorted((at for at, (start, end) in enumerate(spans) if end > start), key=lambda at: spans[at])
    reaching: list[int] = []  # earlier tensors whose span reaches to the next start
    for at in order:
        start = spans[at][0]
        reaching = [other for other in reaching if spans[other][1] > start]
        for other in reaching:
            if (written[at] or written[other]) and _may_meet(tensors[other], tensors[at]):
                return False
        reaching.append(at)
    return True


def _may_meet(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors may share an element, also where two storages overlap."""
    item = first.element_size()
    distance, rest = divmod(second.data_ptr() - first.data_ptr(), item)
    if rest or second.element_size() != item:
        return True
    return _layouts_may_meet(first.shape, first.stride(), second.shape, second.stride(), distance)


@lru_cache(maxsize=4096)  # programs come back to a few layouts, and the answer takes 30 times a look-up's time
def _layouts_may_meet(
    shape: Sequence[int], stride: Sequence[int], other_shape: Sequence[int], other_stride: Sequence[int], distance: int
) -> bool:
    first, second = _meta(shape, stride, 0), _meta(other_shape, other_stride, distance)
    return may_meet(first, second)


def _meta(shape: Sequence[int], stride: Sequence[int], offset: int) -> TensorMeta:
    """Of any dtype: offsets count elements of one size."""
    return TensorMeta(tuple(shape), tuple(stride), torch.uint8, torch.device("cpu"), offset)


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if not tensor.numel():  # a freed parameter has no shape
        return 0
    return extent(tensor.shape, tensor.stride()) * tensor.element_size()  # type: ignore[no-any-return]
