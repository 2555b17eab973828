"""Pages of dead memory that go under fresh memory, instead of lying idle there. Nothing here decides when.

The C library serves a request from a hole that is large enough; if each is too small, from addresses without pages,
while those of the holes stay in the process unused. Moving a page (`mremap`) costs a hundredth of touching a fresh one.
Addresses stay as they are and stay usable: the C library, whose heap this mostly is, need not know.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable

import torch

from .ownership import is_of_torch, is_owned_by_one_variable

_PAGE = mmap.PAGESIZE
_MAY_MOVE, _FIXED, _DONT_UNMAP = 1, 2, 4  # of mremap
_FIXED_IF_FREE = 0x100000  # of mmap, which fails where something is mapped
# A range that was put together from pages of several can only be moved part by part; smaller parts stay where they are
_LEAST_PART = 16 * _PAGE
_FAILED = ctypes.c_void_p(-1).value

# Each range of pages from elsewhere is an entry in the kernel's table, whose length is limited for the whole process.
# Beyond this share of the limit nothing is moved any more. Looked at once in so many moves: it takes half a millisecond
_SHARE_OF_MAPPINGS = 8
_MOVES_BETWEEN_LOOKS = 1024


def move(old: torch.Tensor, at: int, new: torch.Tensor, start: int, count: int) -> None:
    """Move the pages under `count` bytes of `old`, from byte `at` of its memory on, under `new` from byte `start` on.

    Both are CPU tensors; `new` is contiguous in its memory and has no contents yet. Those bytes of both are undefined
    afterwards. To be called with a variable that holds `old` and is read no more.

    Nothing is moved if anybody else has `old` or sees its memory, if torch did not allocate that on the CPU for this
    process alone, if most of the bytes of `new` have pages, or if the system cannot do it; and never more than whole
    pages on both sides.
    """
    if not is_owned_by_one_variable(old) or not is_supported():
        return
    storage = old.untyped_storage()
    if not is_of_torch(storage) or (torch.cuda.is_initialized() and old.is_pinned()):
        return
    source, available = _whole_pages(storage.data_ptr() + at, min(count, storage.nbytes() - at))
    target, wanted = _whole_pages(new.data_ptr() + start, count)
    size = min(available, wanted)
    if size > 0 and _resident(target, size) <= size // 2 and _is_room():
        _move(source, target, size)


def _move(source: int, target: int, size: int) -> None:
    # First to addresses that nobody has: a move to the target unmaps it before it finds out that it is impossible
    system = _system()
    between = system.move(source, size, size, _MAY_MOVE | _DONT_UNMAP, None)
    if between != _FAILED:
        if system.move(between, size, size, _MAY_MOVE | _FIXED, target) == _FAILED:
            system.unmap(between, size)
            _map_again(target, size)
    elif size > _LEAST_PART:
        half = size // _PAGE // 2 * _PAGE
        _move(source, target, half)
        _move(source + half, target + half, size - half)


def _map_again(target: int, size: int) -> None:
    """Memory without pages where a failed move (the kernel has no memory left for its tables) may have left none."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED_IF_FREE
    _system().map(target, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)


def _whole_pages(address: int, count: int) -> tuple[int, int]:
    """Where the whole pages among so many bytes start, and how many bytes they have (below 1: there are none)."""
    start = -(-address // _PAGE) * _PAGE
    return start, (address + count) // _PAGE * _PAGE - start


def _resident(address: int, size: int) -> int:
    """How many of these bytes have pages."""
    found = ctypes.create_string_buffer(size // _PAGE)
    if _system().in_core(address, size, found):
        return size
    return found.raw.count(b"\1") * _PAGE


class _Room:
    """Whether there is room for more mappings, and in how many moves that is looked at again."""

    __slots__ = ("is_there", "moves_left")

    def __init__(self) -> None:
        self.is_there, self.moves_left = True, 0


_room = _Room()


def _is_room() -> bool:
    _room.moves_left -= 1
    if _room.moves_left < 0:
        _room.moves_left = _MOVES_BETWEEN_LOOKS
        try:
            with open("/proc/self/maps", "rb") as mappings:
                count = sum(1 for _ in mappings)
            with open("/proc/sys/vm/max_map_count", "rb") as limit:
                _room.is_there = count < int(limit.read()) // _SHARE_OF_MAPPINGS
        except OSError:  # too many open files, say: the program's business, not ours
            _room.is_there = False
    return _room.is_there


class _System:
    """Functions of the C library."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        pointer, number = ctypes.c_void_p, ctypes.c_size_t
        self.move: Callable[..., int | None] = library.mremap
        self.move.argtypes = (pointer, number, number, ctypes.c_int, pointer)  # type: ignore[attr-defined]
        self.move.restype = pointer  # type: ignore[attr-defined]
        self.unmap: Callable[..., int] = library.munmap
        self.unmap.argtypes = (pointer, number)  # type: ignore[attr-defined]
        self.map: Callable[..., int | None] = library.mmap
        self.map.argtypes = (pointer, number, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)  # type: ignore[attr-defined]
        self.map.restype = pointer  # type: ignore[attr-defined]
        self.in_core: Callable[..., int] = library.mincore
        self.in_core.argtypes = (pointer, number, ctypes.c_char_p)  # type: ignore[attr-defined]


@functools.cache
def _system() -> _System:
    return _System()


@functools.cache
def is_supported() -> bool:
    """Whether pages can be moved out of memory that stays mapped: on Linux, from 5.7 on. Tried out once."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        system = _system()
        with open("/proc/self/maps", "rb"), open("/proc/sys/vm/max_map_count", "rb"):
            pass
    except (OSError, AttributeError):  # another C library, or no /proc
        return False
    memory = mmap.mmap(-1, 2 * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[0] = 1
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    flags = _MAY_MOVE | _FIXED | _DONT_UNMAP
    return system.move(start, _PAGE, _PAGE, flags, start + _PAGE) != _FAILED and memory[0] == 0 and memory[_PAGE] == 1


__all__ = ["is_supported", "move"]
