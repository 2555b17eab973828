"""Memory for the intermediates of compiled programs: blocks that outlive calls and that all programs share.

A call takes a block from `idle` and returns it there, so that repeated calls neither fault pages in nor construct
tensors and contexts. A block in use is in no pool, so threads and re-entrant calls never share one. Results of programs
never lie here.
"""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections import deque
from collections.abc import Sequence

import torch

from .autograd_state import below_autograd
from .placement import Piece, padded, place

# One intermediate: (offset in bytes, size, stride, dtype).
Slot = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]

# The same with the number of a piece of memory in front, in which the offset counts
SizedSlot = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]

_ALIGNMENT = 64
_HUGE_PAGE = 2 << 20
idle: deque[Block] = deque(maxlen=16)  # at most so many idle blocks are kept
_tokens = itertools.count()
_needs: dict[int, int] = {}  # bytes needed by each living ArenaUser


class Block:
    """What a call of a program uses alone: memory, its tensors for each program that has used it, and the context that
    library functions run in."""

    __slots__ = ("bytes", "context", "memory", "tensors")

    def __init__(self) -> None:
        self.bytes = 0
        self.memory: torch.Tensor | None = None
        self.tensors: dict[int, tuple[torch.Tensor, ...]] = {}  # by token
        self.context = below_autograd()  # making one takes longer than entering it


class ArenaUser:
    """A program's demand of memory. In a block that `fit` has prepared, `tensors[user.token]` are the slots."""

    __slots__ = ("__weakref__", "bytes", "slots", "token")

    def __init__(self, size: int, slots: Sequence[Slot]) -> None:
        self.bytes = size
        self.slots = tuple(slots)
        self.token = next(_tokens)
        _needs[self.token] = size
        weakref.finalize(self, _forget, self.token)

    def fit(self, block: Block) -> tuple[torch.Tensor, ...]:
        """Return the tensors of the slots in a block that this program has not used before."""
        if block.memory is None or block.bytes < self.bytes:
            block.bytes = max(_needs.values(), default=self.bytes)  # fits every later program
            block.memory = _reserve(block.bytes)
            block.tensors.clear()
        for token in block.tensors.keys() - _needs.keys():  # freed while the block was in use
            del block.tensors[token]
        made = block.tensors[self.token] = _make_tensors(block.memory, self.slots)
        return made


def placed_arena(pieces: Sequence[Piece], slots: Sequence[SizedSlot]) -> ArenaUser:
    """The demand of memory of a program for sizes that are known when it runs.

    pieces: (first step, last step, bytes) of each piece of memory. slots: as of `ArenaUser`, with offsets in a piece.
    """
    offsets, needed = place([(start, end, padded(max(size, 0))) for start, end, size in pieces])
    placed = [(offsets[piece] + offset, size, stride, dtype) for piece, offset, size, stride, dtype in slots]
    return ArenaUser(needed, placed)


def clear() -> None:
    """Return all idle blocks to the system."""
    idle.clear()


def idle_bytes() -> int:
    return sum(block.bytes for block in idle)


def _forget(token: int) -> None:
    """Drop the tensors of a program that was freed, and blocks larger than the remaining programs need."""
    _needs.pop(token, None)
    most = max(_needs.values(), default=0)
    for block in list(idle):
        block.tensors.pop(token, None)
        if block.bytes > most and block in idle:
            idle.remove(block)


def _reserve(size: int) -> torch.Tensor:
    """Map zeroed, page-aligned memory outside of torch's allocator, in huge pages if it is large enough and the system
    has them, which avoids most TLB misses."""
    # A normal tensor works in every mode, an inference tensor does not.
    with torch._C._InferenceMode(False):
        if not hasattr(mmap, "MAP_ANONYMOUS"):
            return _aligned(torch.empty(max(size, _ALIGNMENT) + _ALIGNMENT, dtype=torch.uint8, device="cpu"))
        huge = size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
        length = -(-size // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE if huge else max(size, _ALIGNMENT)
        # Private: a forked child must not write into its parent's intermediates.
        pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge:
            pages.madvise(mmap.MADV_HUGEPAGE)
        return _aligned(torch.frombuffer(pages, dtype=torch.uint8), _HUGE_PAGE if huge else _ALIGNMENT)


def _aligned(memory: torch.Tensor, to: int = _ALIGNMENT) -> torch.Tensor:
    return memory[-memory.data_ptr() % to :]


def _make_tensors(memory: torch.Tensor, slots: Sequence[Slot]) -> tuple[torch.Tensor, ...]:
    storage, start = memory.untyped_storage(), memory.storage_offset()
    made = []
    with torch._C._InferenceMode(False):
        for offset, size, stride, dtype in slots:
            tensor = torch.empty(0, dtype=dtype, device="cpu")
            tensor.set_(storage, (start + offset) // dtype.itemsize, size, stride)
            made.append(tensor)
    return tuple(made)
