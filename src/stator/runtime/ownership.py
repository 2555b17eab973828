"""Taking over the memory of a tensor that is about to be dropped, if nobody else has it. Nothing here decides when.

What counts of references say of a tensor that one variable holds differs between versions of torch: it is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_storage_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def _owners(tensor: Any) -> tuple[int, ...]:
    """Numbers of references: to a tensor as an object, to what it stands for, and the same two of its memory."""
    if _storage_use_count is None:
        return ()
    storage = tensor.untyped_storage()
    used = _storage_use_count(storage._cdata)
    return sys.getrefcount(tensor), tensor._use_count(), sys.getrefcount(storage), used


def _of_one() -> tuple[int, ...]:
    """The same for a tensor that only one variable holds, seen from the function that this one calls, as in `taker`."""
    tensor = torch.empty(1, device="cpu")
    return _asked(tensor)


def _asked(tensor: torch.Tensor) -> tuple[int, ...]:
    return _owners(tensor)


_EXPECTED = _of_one()
# The variable, two arguments, and that of sys.getrefcount; if references are counted otherwise, nothing is taken over
_SUPPORTED = bool(_EXPECTED) and _EXPECTED[:2] == (4, 1)


def taker(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, count: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function from a tensor on the CPU to one of this layout and `count` bytes, without contents.

    It is in the memory of the given tensor if that has as many bytes, torch's allocator made it, and nobody has it but
    one variable of the caller, which is not to be used again; else in fresh memory.
    """

    def take(old: torch.Tensor) -> torch.Tensor:
        if _SUPPORTED and _owners(old) == _EXPECTED:
            storage = old.untyped_storage()
            # torch allocated it, for this process alone: no array or other process sees it
            if storage.resizable() and not storage.is_shared() and storage.nbytes() == count:
                made = torch.empty(0, dtype=dtype, device="cpu")
                return made.set_(storage, 0, size, stride)  # type: ignore[call-overload]
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")

    return take


__all__ = ["taker"]
