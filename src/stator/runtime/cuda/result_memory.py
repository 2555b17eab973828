"""Memory of results that recorded programs hand out, and whether anybody but its owner still uses it.

Reference counts of a storage, of its tensors and of their Python objects tell whether a tensor, view, array, autograd
node or storage object lives. Copying and replaying are elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stator.runtime.launch import uses, uses_are

_use_count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class ResultStorage:
    """The storage of one or several results of a recording.

    tensors: these results; nothing else may own them at first. They keep the memory allocated, unless it is given away.
    storages: for each of them the storage.
    """

    __slots__ = ("_released", "address", "at_rest", "bytes", "given_away", "positions", "storages", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor], positions: Sequence[int]) -> None:
        self.tensors, self.positions = list(tensors), tuple(positions)
        storage = tensors[0].untyped_storage()
        self.storages: list[torch.UntypedStorage] = [storage] * len(tensors)
        self.address, self.bytes = storage.data_ptr(), storage.nbytes()
        self.at_rest = b""
        self.given_away = False
        self._released: StorageWeakRef | None = None

    def is_shared(self) -> bool:
        """Whether somebody else owns the storage of a new object."""
        return _counts_of(self) != (len(self.tensors) + _OTHER_USES, len(self.tensors) + _OTHER_REFERENCES)

    def rest(self) -> None:
        """Take what refers to the memory now for its owners."""
        self.at_rest = uses(self.tensors, self.storages)

    def is_used(self) -> bool:
        """True if a caller holds this memory, or has changed it for other memory."""
        if not self.tensors:
            return self._released is not None and not self._released.expired()
        return not uses_are(self.tensors, self.storages, self.at_rest)

    def give_away(self) -> None:
        """Leave the memory to those who own the tensors besides. From now on `tensors` are others, which lie there and
        own nothing."""
        storage = torch._C._construct_storage_from_data_pointer(self.address, self.tensors[0].device, self.bytes)
        self.tensors = [
            one.new_empty(0).set_(storage, one.storage_offset(), one.shape, one.stride())  # type: ignore[call-overload]
            for one in self.tensors
        ]
        self.storages = [self.tensors[0].untyped_storage()] * len(self.tensors)
        self.given_away = True

    def release(self) -> None:
        """Leave the memory to those who use it. `is_used` goes on telling whether they do."""
        if self.tensors:
            self._released = StorageWeakRef(self.storages[0])
            self.tensors.clear()
            self.storages.clear()


class Donation:
    """Saved values of one recording that one backward takes, in each call. The recording owns it, as long as it keeps
    the values; the backward's asks it."""

    __slots__ = ("__weakref__", "_held", "_storages", "_tensors")

    def __init__(self, storages: Iterable[ResultStorage]) -> None:
        self._tensors = [tensor for one in storages for tensor in one.tensors]
        self._storages = [storage for one in storages for storage in one.storages]
        self._held = b""

    def note_call(self) -> None:
        """Remember what refers to the values while the arguments of the backward alone hold them."""
        self._held = uses(self._tensors, self._storages)

    def is_free(self) -> bool:
        """Whether the arguments of the backward alone hold the values: no graph that is kept, and no caller."""
        return uses_are(self._tensors, self._storages, self._held)


_OTHER_USES, _OTHER_REFERENCES = 0, 0


def _counts_of(owner: ResultStorage) -> tuple[int, int]:
    storage = owner.storages[0]
    return _use_count(storage._cdata), sys.getrefcount(storage)  # type: ignore[misc]


def _calibrate() -> tuple[int, int] | None:
    """The counts of an unused storage beyond its tensors. They differ between versions of torch and Python. None if the
    counts do not tell tensors, storage objects, tensors that autograd keeps, and no use apart."""
    if _use_count is None:
        return None
    tensor = torch.empty(4, device="cpu")
    owner = ResultStorage([tensor, tensor[:2].detach()], (0, 1))
    del tensor
    count, references = _counts_of(owner)
    try:
        owner.rest()
    except (NotImplementedError, TypeError):  # no C extension, or tensors of an unknown layout
        return None
    seen = [owner.is_used()]
    alias = owner.tensors[0].detach()
    seen.append(owner.is_used())
    storage = alias.untyped_storage()
    del alias
    seen.append(owner.is_used())
    del storage
    seen.append(owner.is_used())
    node = (torch.zeros(4, device="cpu", requires_grad=True) * owner.tensors[0]).grad_fn
    seen.append(owner.is_used())
    del node
    seen.append(owner.is_used())
    return (count - 2, references - 2) if seen == [False, True, True, False, True, False] else None


with torch.inference_mode(False), torch.enable_grad():  # the first call of a program may be inside of either
    _found = _calibrate()
if _found is not None:
    _OTHER_USES, _OTHER_REFERENCES = _found

# Without this, the use of results cannot be told, and all results are copied
USES_ARE_KNOWN = _found is not None

__all__ = ["USES_ARE_KNOWN", "Donation", "ResultStorage"]
