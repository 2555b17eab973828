"""Large memory in huge pages: the system clears 2 MB at once, where small pages are faults of 4 KB each.

The C library maps the memory of a large tensor when the tensor is made, and unmaps it when the tensor dies, so that
each call of a program meets fresh pages (mallopt(3), M_MMAP_THRESHOLD). A fault takes longer than clearing its page:
writing 64 MB took 62 ms in small pages, 11 ms in huge ones and 5 ms in memory that was written before (Zen 3). Smaller
memory is mostly kept by the library and used again.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable

import torch

HUGE_PAGE = 2 << 20
LARGE = 32 << 20  # bytes; glibc raises its threshold as far as this

Size = tuple[int, ...]

_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone has it
_madvise = ctypes.CDLL(None).madvise if _ADVICE is not None else None
if _madvise is not None:
    _madvise.argtypes, _madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int


def is_large(size: Size, dtype: torch.dtype, device: str) -> bool:
    """Whether tensors of this layout without gaps are worth huge pages. Only CPUs have them."""
    return _ADVICE is not None and device == "cpu" and math.prod(size) * dtype.itemsize >= LARGE


def advised(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fresh tensor, whose memory nobody has written, after asking for huge pages inside of its memory.

    The advice has no effect where the system is set to give none.
    """
    storage = tensor.untyped_storage()
    begin = -(-storage.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    end = (storage.data_ptr() + storage.nbytes()) // HUGE_PAGE * HUGE_PAGE
    if end > begin and _madvise is not None:
        _madvise(begin, end - begin, _ADVICE)
    return tensor


def in_huge_pages(make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The allocation `make` of large tensors, in huge pages."""
    return lambda: advised(make())


def in_huge_pages_if_large(make: Callable[[Size, Size], torch.Tensor]) -> Callable[[Size, Size], torch.Tensor]:
    """The allocation `make` of a size and a stride on a CPU, in huge pages where the tensor is large."""
    if _ADVICE is None:
        return make

    def allocate(size: Size, stride: Size) -> torch.Tensor:
        tensor = make(size, stride)
        return advised(tensor) if tensor.nbytes >= LARGE else tensor

    return allocate
