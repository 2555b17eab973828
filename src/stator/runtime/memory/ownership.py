"""Whether the memory of a tensor has other owners, and its reuse if the tensor is about to be dropped.

The reference counts of a tensor that one variable holds differ between versions of torch, so they are measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

_storage_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def _owners(tensor: Any) -> tuple[int, ...]:
    """Return four reference counts: of the tensor's Python object, its TensorImpl, and the same two of its storage."""
    if _storage_use_count is None:
        return ()
    storage = tensor.untyped_storage()
    used = _storage_use_count(storage._cdata)
    return sys.getrefcount(tensor), tensor._use_count(), sys.getrefcount(storage), used


def _owners_of_one_variable() -> tuple[int, ...]:
    """Measure the counts of a tensor with one variable, at the call depth of `memory_reuser`."""
    tensor = torch.empty(1, device="cpu")
    return _owners_in_callee(tensor)


def _owners_in_callee(tensor: torch.Tensor) -> tuple[int, ...]:
    return _owners(tensor)


_EXPECTED = _owners_of_one_variable()
# The variable, two arguments, and that of sys.getrefcount. With other counts no memory is reused.
_SUPPORTED = bool(_EXPECTED) and _EXPECTED[:2] == (4, 1)


def has_other_owners(tensor: torch.Tensor) -> bool:
    """Whether a tensor that C++ passes to Python may be used elsewhere, or its memory by another tensor. References of
    Python to the tensor do not count."""
    if not _SUPPORTED or _storage_use_count is None:
        return True
    storage = tensor.untyped_storage()
    return tensor._use_count() > _EXPECTED[1] or _storage_use_count(storage._cdata) > _EXPECTED[3]  # type: ignore[attr-defined]


def memory_reuser(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, count: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from a CPU tensor to an uninitialized one of this layout and `count` bytes.

    It reuses the tensor's memory if that has `count` bytes, comes from torch's allocator and belongs to one variable of
    the caller alone, which the caller must not use again. Otherwise the memory is fresh.
    """

    def take(old: torch.Tensor) -> torch.Tensor:
        if _SUPPORTED and _owners(old) == _EXPECTED:
            storage = old.untyped_storage()
            # torch allocated it for this process alone: no array or other process sees it
            if storage.resizable() and not storage.is_shared() and storage.nbytes() == count:
                made = torch.empty(0, dtype=dtype, device="cpu")
                return made.set_(storage, 0, size, stride)  # type: ignore[call-overload]
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")

    return take


__all__ = ["has_other_owners", "memory_reuser"]
