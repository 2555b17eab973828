"""Memory of results that recorded programs hand out, and whether anybody but its owner still uses it.

The C++ and the Python reference counts of a storage tell whether a tensor, view, array, autograd node or storage object
lives. Copying and replaying are elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class ResultStorage:
    """The storage of one or several results of a recording.

    tensors: these results; nothing else may own them. They keep the memory allocated, and are never given to callers.
    """

    __slots__ = ("_cdata", "_counts", "_released", "_storage", "address", "bytes", "positions", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor], positions: Sequence[int]) -> None:
        self.tensors, self.positions = list(tensors), tuple(positions)
        self._storage: torch.UntypedStorage | None = tensors[0].untyped_storage()
        self._cdata: int = self._storage._cdata
        self.address, self.bytes = self._storage.data_ptr(), self._storage.nbytes()
        self._counts = len(self.tensors) + _OTHER_USES, _REFERENCES
        self._released: StorageWeakRef | None = None

    def is_used(self) -> bool:
        """True if a caller holds this memory, or has changed it for other memory."""
        if self._storage is None:
            return self._released is not None and not self._released.expired()
        if (_use_count(self._cdata), sys.getrefcount(self._storage)) != self._counts:  # type: ignore[misc]
            return True
        return self._storage.data_ptr() != self.address

    def release(self) -> None:
        """Leave the memory to those who use it. `is_used` goes on telling whether they do."""
        if self._storage is not None:
            self._released = StorageWeakRef(self._storage)
            self._storage = None
            self.tensors.clear()


_OTHER_USES, _REFERENCES = 0, 0


def _calibrate() -> tuple[int, int] | None:
    """The counts of an unused storage beyond its tensors. They differ between versions of torch and Python. None if the
    counts do not tell tensors, storage objects and no use apart."""
    if _use_count is None:
        return None
    tensor = torch.empty(4, device="cpu")
    owner = ResultStorage([tensor, tensor[:2].detach()], (0, 1))
    del tensor
    uses, references = _use_count(owner._cdata) - 2, sys.getrefcount(owner._storage)
    owner._counts = uses + 2, references
    seen = [owner.is_used()]
    alias = owner.tensors[0].detach()
    seen.append(owner.is_used())
    storage = alias.untyped_storage()
    del alias
    seen.append(owner.is_used())
    del storage
    seen.append(owner.is_used())
    return (uses, references) if seen == [False, True, True, False] else None


_found = _calibrate()
if _found is not None:
    _OTHER_USES, _REFERENCES = _found

# Without this, the use of results cannot be told, and all results are copied
USES_ARE_KNOWN = _found is not None

__all__ = ["USES_ARE_KNOWN", "ResultStorage"]
