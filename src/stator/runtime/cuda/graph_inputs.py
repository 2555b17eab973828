"""Inputs of recorded programs: read where they lie, or copied to places of their own before a replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True, slots=True)
class InputDescription:
    """The inputs of a program, by position.

    tensors: the others are numbers. parameters: tensors that are nearly always the same. written: tensors that the
    program writes to. sizes: (position, dimension) of each size that changes between calls; dimension -1 of a number.
    boxed: the inputs come in one list, which the program empties.
    """

    tensors: tuple[int, ...]
    parameters: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    sizes: tuple[tuple[int, int], ...] = ()
    boxed: bool = False

    def sizes_in(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([inputs[at] if dim < 0 else inputs[at].shape[dim] for at, dim in self.sizes])


class SeenStorage:
    """Remembers where a tensor was in a call."""

    __slots__ = ("address", "storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.address, self.storage = tensor.data_ptr(), StorageWeakRef(tensor.untyped_storage())

    def is_in(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor is still in that storage, which lives, at that address."""
        return self.address == tensor.data_ptr() and not self.storage.expired()


class InputPlaces:
    """Memory that inputs are copied to. by_position: its tensors."""

    __slots__ = ("_back", "_groups", "by_position")

    def __init__(self, inputs: Sequence[Any], copied: Sequence[int], written: frozenset[int]) -> None:
        self.by_position = {at: _like(inputs[at]) for at in copied}
        groups: defaultdict[torch.dtype, list[int]] = defaultdict(list)  # one kernel copies all tensors of a dtype
        for at in copied:
            groups[inputs[at].dtype].append(at)
        self._groups = [([_distinct(self.by_position[at]) for at in group], group) for group in groups.values()]
        self._back = [at for at in copied if at in written]

    def fill(self, inputs: Sequence[Any]) -> None:
        for places, positions in self._groups:
            torch._foreach_copy_(places, [_distinct(inputs[at]) for at in positions])

    def write_back(self, inputs: Sequence[Any]) -> None:
        for at in self._back:
            inputs[at].copy_(self.by_position[at])


def can_copy(tensor: torch.Tensor) -> bool:
    """Whether a copy of the distinct elements of a tensor is all that a program can read: false where elements overlap
    other than by expansion."""
    expected = 1
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 1 or step == 0:
            continue
        if step < expected:
            return False
        expected = step * length
    return True


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the tensor's layout."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without repetitions of its elements."""
    if 0 in tensor.stride() and tensor.numel():
        for dim, step in enumerate(tensor.stride()):
            if step == 0:
                tensor = tensor.narrow(dim, 0, 1)
    return tensor


__all__ = ["InputDescription", "InputPlaces", "SeenStorage", "can_copy"]
