"""Memory for the intermediates of compiled programs: blocks that outlive calls and that all programs share.

A call takes a block from a pool of idle blocks and returns it there, so that repeated calls neither fault pages in nor
construct tensors and contexts. A block in use is in no pool, so threads and re-entrant calls never share one. Results
of programs never lie here.

CPUs have one pool, `idle`. GPUs have one for each stream: a call returns its block when its kernels are queued, and the
kernels of the next call that takes the block wait for them, because they are in the same stream.
"""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import torch

from ..autograd_state import below_autograd
from .huge_pages import HUGE_PAGE
from .placement import Piece, padded, place, spacing_on

# One intermediate: (offset in bytes, size, stride, dtype).
Slot = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]

# The same with the number of a piece of memory in front, in which the offset counts
SizedSlot = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]

_ALIGNMENT = 64
_MOST_IDLE = 16  # blocks of a pool
_CPU = torch.device("cpu")
idle: deque[Block] = deque(maxlen=_MOST_IDLE)
_of_streams: dict[tuple[torch.device, int], deque[Block]] = {}
_tokens = itertools.count()
_needs: dict[int, tuple[torch.device, int]] = {}  # device, and bytes needed, of each living ArenaUser
_most: dict[torch.device, int] = {}  # the largest of these: a program has an ArenaUser for each of its many sizes


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

    __slots__ = ("__weakref__", "bytes", "device", "slots", "token")

    def __init__(self, size: int, slots: Sequence[Slot], device: torch.device = _CPU) -> None:
        self.bytes = size
        self.slots = tuple(slots)
        self.device = device
        self.token = next(_tokens)
        _needs[self.token] = device, size
        _most[device] = max(_most.get(device, 0), size)
        weakref.finalize(self, _forget, self.token)

    def fit(self, block: Block) -> tuple[torch.Tensor, ...]:
        """Return the tensors of the slots in a block that this program has not used before."""
        if block.memory is None or block.bytes < self.bytes:
            block.bytes = max(_most.get(self.device, 0), self.bytes)  # fits every later program
            block.memory = _reserve(block.bytes, self.device)
            block.tensors.clear()
        for token in block.tensors.keys() - _needs.keys():  # freed while the block was in use
            del block.tensors[token]
        made = block.tensors[self.token] = _make_tensors(block.memory, self.slots)
        return made


def placed_arena(pieces: Sequence[Piece], slots: Sequence[SizedSlot], device: torch.device = _CPU) -> ArenaUser:
    """The demand of memory of a program for sizes that are known when it runs.

    pieces: (first step, last step, bytes) of each piece of memory. slots: as of `ArenaUser`, with offsets in a piece.
    """
    spacing = spacing_on(device.type)
    offsets, needed = place([(start, end, padded(max(size, 0), spacing)) for start, end, size in pieces])
    placed = [(offsets[piece] + offset, size, stride, dtype) for piece, offset, size, stride, dtype in slots]
    return ArenaUser(needed, placed, device)


def idle_on(device: torch.device) -> Callable[[], deque[Block]]:
    """Return the function that finds the idle blocks of a GPU's current stream.

    While a CUDA graph is captured there are none, and nobody gets the block of the call: its memory is the graph's, and
    may be freed with the graph.
    """
    index = device.index

    def find() -> deque[Block]:
        if torch._C._cuda_isCurrentStreamCapturing():
            return deque(maxlen=0)
        key = device, torch._C._cuda_getCurrentRawStream(index)
        pool = _of_streams.get(key)
        return _of_streams.setdefault(key, deque(maxlen=_MOST_IDLE)) if pool is None else pool

    return find


def clear() -> None:
    """Return all idle blocks to the system."""
    for pool in _pools():
        pool.clear()


def idle_bytes() -> int:
    return sum(block.bytes for pool in _pools() for block in pool)


def _pools() -> list[deque[Block]]:
    return [idle, *_of_streams.values()]


def _forget(token: int) -> None:
    """Drop the tensors of a program that was freed, and blocks larger than the remaining programs need."""
    freed = _needs.pop(token, None)
    if freed is None:
        return
    device, size = freed
    if size >= _most.get(device, 0):
        _most[device] = max((needed for other, needed in list(_needs.values()) if other == device), default=0)
    most = _most[device]
    for pool in [idle] if device == _CPU else [pool for key, pool in list(_of_streams.items()) if key[0] == device]:
        for block in list(pool):
            block.tensors.pop(token, None)
            if block.bytes > most and block in pool:
                pool.remove(block)


def _reserve(size: int, device: torch.device) -> torch.Tensor:
    """Take memory of a GPU from torch's allocator. For CPUs, map zeroed, page-aligned memory outside of torch's
    allocator, in huge pages if it is large enough and the system has them, which avoids most TLB misses."""
    # A normal tensor works in every mode, an inference tensor does not.
    with torch._C._InferenceMode(False):
        if device != _CPU:
            return torch.empty(max(size, _ALIGNMENT), dtype=torch.uint8, device=device)
        if not hasattr(mmap, "MAP_ANONYMOUS"):
            return _aligned(torch.empty(max(size, _ALIGNMENT) + _ALIGNMENT, dtype=torch.uint8, device="cpu"))
        huge = size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
        length = -(-size // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE if huge else max(size, _ALIGNMENT)
        # Private: a forked child must not write into its parent's intermediates.
        pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge:
            pages.madvise(mmap.MADV_HUGEPAGE)
        return _aligned(torch.frombuffer(pages, dtype=torch.uint8), HUGE_PAGE if huge else _ALIGNMENT)


def _aligned(memory: torch.Tensor, to: int = _ALIGNMENT) -> torch.Tensor:
    return memory[-memory.data_ptr() % to :]


def _make_tensors(memory: torch.Tensor, slots: Sequence[Slot]) -> tuple[torch.Tensor, ...]:
    storage, start = memory.untyped_storage(), memory.storage_offset()
    made = []
    with torch._C._InferenceMode(False):
        for offset, size, stride, dtype in slots:
            tensor = torch.empty(0, dtype=dtype, device=memory.device)
            tensor.set_(storage, (start + offset) // dtype.itemsize, size, stride)
            made.append(tensor)
    return tuple(made)
