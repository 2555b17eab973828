"""Results of recorded programs: handed out where they lie, copied, or made from inputs. Each call gets tensors of its
own, also of memory that it shares with earlier calls; only results that no program of the user sees are lent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import torch

from stator.runtime.launch import uses_are, with_aliases

from .graph_capture import CaptureFailed
from .result_memory import USES_ARE_KNOWN, Donation, ResultStorage

Layout = tuple[torch.Size, tuple[int, ...], int]


class RecordedResults:
    """The results of one recording.

    handed: the storages that callers get. lent: those of them that compiled code keeps for itself. `make` needs a
    context below autograd.
    """

    __slots__ = (
        *("_at_rest", "_copied", "_copied_storages", "_donations", "_inputs", "_items", "_owned", "_positions"),
        *("_repeated", "_storages", "_tensors", "handed", "lent"),
    )

    def __init__(
        self,
        results: list[Any],
        given: Sequence[Any],
        copied: Collection[int],
        device: torch.device,
        visible: int | None = None,
    ) -> None:
        """results: those of the capture; the list is emptied, because nothing else may own results. given: the inputs
        of the capture. copied: positions of results that callers get copies of. visible: only so many of the results
        leave compiled code.

        Raises CaptureFailed for a result that a replay cannot make again.
        """
        self._items: list[Any] = [None] * len(results)  # of every call
        self._inputs: list[tuple[int, int, Layout | None]] = []
        self._repeated: list[tuple[int, int]] = []
        groups: dict[int, list[tuple[int, torch.Tensor]]] = {}
        storages = {
            tensor.untyped_storage()._cdata: at for at, tensor in enumerate(given) if isinstance(tensor, torch.Tensor)
        }
        first: dict[int, int] = {}
        for at, result in enumerate(results):
            earlier = first.setdefault(id(result), at)
            if earlier != at and isinstance(result, torch.Tensor):
                self._repeated.append((at, earlier))
                continue
            if not isinstance(result, torch.Tensor):
                self._items[at] = result
                continue
            if result.layout is not torch.strided or result.device != device or result.is_conj() or result.is_neg():
                raise CaptureFailed("a result is no plain tensor of the device")
            storage = result.untyped_storage()._cdata
            if storage in storages:
                self._inputs.append(_of_input(at, result, storages[storage], given))
            else:
                groups.setdefault(storage, []).append((at, result))
        results.clear()
        del result
        self.handed: list[ResultStorage] = []
        self.lent: list[ResultStorage] = []
        self._donations: list[Donation] = []
        # results that callers get other tensors of
        self._positions: list[int] = []
        self._tensors: list[torch.Tensor] = []
        self._copied: list[tuple[list[torch.Tensor], list[int]]] = []
        self._copied_storages: list[ResultStorage] = []
        self._choose(groups, copied, len(self._items) if visible is None else visible)
        self._rest(self.handed)

    def _choose(self, groups: dict[int, list[tuple[int, torch.Tensor]]], copied: Collection[int], visible: int) -> None:
        """Choose for each storage whether callers get that storage or a copy. A result that compiled code keeps for
        itself is one tensor for all calls: nobody uses it when a call begins."""
        single: defaultdict[torch.dtype, tuple[list[torch.Tensor], list[int]]] = defaultdict(lambda: ([], []))
        for key in list(groups):
            positions = [at for at, _ in groups[key]]
            owner = ResultStorage([tensor for _, tensor in groups.pop(key)], positions)
            if USES_ARE_KNOWN and not owner.is_shared() and not any(at in copied for at in positions):
                self.handed.append(owner)
                if min(positions) >= visible and owner.bytes:
                    self.lent.append(owner)
                for at, tensor in zip(positions, owner.tensors, strict=True):
                    if at >= visible:
                        self._items[at] = tensor
                        continue
                    self._positions.append(at)
                    self._tensors.append(tensor)
            elif len(positions) == 1:
                tensors, places = single[owner.tensors[0].dtype]
                tensors += owner.tensors
                places += positions
            else:
                self._copied_storages.append(owner)
        self._copied = list(single.values())

    def _rest(self, storages: Collection[ResultStorage]) -> None:
        """Take what refers to these storages now for their owners."""
        self._owned = [tensor for one in self.handed for tensor in one.tensors]
        self._storages = [storage for one in self.handed for storage in one.storages]
        for one in storages:
            one.rest()
        self._at_rest = b"".join([one.at_rest for one in self.handed])

    def give_away(self, storages: Collection[ResultStorage]) -> Donation:
        """Leave storages of `lent`, which nobody uses, to those who own their tensors besides. Calls go on getting
        tensors that lie there."""
        self._owned.clear()
        self._storages.clear()
        for one in storages:
            one.give_away()
            for at, tensor in zip(one.positions, one.tensors, strict=True):
                self._items[at] = tensor
        donation = Donation(storages)
        self._donations.append(donation)
        del tensor
        self._rest(storages)
        return donation

    def make(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The results of a replay."""
        made = with_aliases(self._items, self._positions, self._tensors)
        for at, position, layout in self._inputs:
            made[at] = inputs[position] if layout is None else _view(inputs[position], *layout)
        for tensors, positions in self._copied:
            copies = [_like(tensor) for tensor in tensors]
            torch._foreach_copy_(copies, tensors)
            for at, copy in zip(positions, copies, strict=True):
                made[at] = copy
        for owner in self._copied_storages:
            for at, copy in zip(owner.positions, _copies_of_views(owner.tensors), strict=True):
                made[at] = copy
        for at, earlier in self._repeated:
            made[at] = made[earlier]
        return tuple(made)

    def are_used(self) -> bool:
        """Whether any of `handed` is used."""
        return bool(self.handed) and not uses_are(self._owned, self._storages, self._at_rest)

    def release(self) -> None:
        """Leave the memory to its users."""
        for items in (self._items, self._positions, self._tensors, self._owned, self._storages, self._donations):
            items.clear()
        for one in self.handed:
            one.release()


def _of_input(at: int, result: torch.Tensor, position: int, given: Sequence[Any]) -> tuple[int, int, Layout | None]:
    """How a result is made from the input in whose memory it lies."""
    for place, one in enumerate(given):
        if one is result:
            return at, place, None
    tensor = given[position]
    if tensor.dtype != result.dtype:
        raise CaptureFailed("a result is a view of an input with another dtype")
    return at, position, (result.shape, result.stride(), result.storage_offset() - tensor.storage_offset())


def _view(base: torch.Tensor, size: torch.Size, stride: tuple[int, ...], offset: int) -> torch.Tensor:
    return torch.as_strided(base, size, stride, base.storage_offset() + offset)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty_strided(tensor.shape, tensor.stride())


def _copies_of_views(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of one copy of the memory that these tensors share."""
    storage = tensors[0].untyped_storage()
    whole = tensors[0].new_empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
    copy = whole.clone().untyped_storage()
    return [
        tensor.new_empty(0).set_(copy, tensor.storage_offset(), tensor.shape, tensor.stride()) for tensor in tensors
    ]


__all__ = ["RecordedResults"]
