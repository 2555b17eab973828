"""Fresh tensors so large that the allocator maps them anew each time: their memory is asked for in huge pages.

Touching 100 MB of fresh memory in pages of 4 KB takes some 40 ms, in huge pages a quarter of that. What leaves a
program cannot be kept for the next call, as intermediates are (arena.py). Nothing here is needed for a right result.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import torch

# From here on the C library maps every allocation by itself (its threshold grows up to this); below it, memory that was
# freed is used again, which costs no page faults.
LARGE_BYTES = 32 << 20

_PAGE = mmap.PAGESIZE


def _find() -> Callable[[int, int], int] | None:
    """The system's madvise; None where there is none, or no huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int

    def advise(start: int, size: int) -> int:
        return function(start, size, mmap.MADV_HUGEPAGE)  # type: ignore[no-any-return]

    return advise


_advise = _find()


def large_like(template: torch.Tensor) -> torch.Tensor:
    """`torch.empty_like`, in huge pages where the system gives them."""
    made = torch.empty_like(template)
    if _advise is not None:
        start = -(-made.data_ptr() // _PAGE) * _PAGE
        end = (made.data_ptr() + made.untyped_storage().nbytes()) // _PAGE * _PAGE
        if end > start:
            _advise(start, end - start)  # only advice: it may be refused
    return made
