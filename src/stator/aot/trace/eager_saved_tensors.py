"""What autograd's nodes of a traced program save when the program runs in eager mode.

A compiled step is one node for many, and saves other values. From here it knows which of its results could still be
differentiated after a backward of others, and which inputs eager would read when the backward runs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeStorage, FakeTensor

from .autograd_reachability import reached


@dataclass(frozen=True, slots=True)
class Savers:
    """Sets of values are bits of a number: each value by its place among those that can be differentiated.

    freed_with: per value, the values that lead to a node which saves something and to which this value leads, too: a
    backward of this value frees what those need. inputs: indices of the inputs that were saved themselves, not as a
    view: a backward reads what is in them when it runs.
    """

    freed_with: tuple[int, ...]
    inputs: frozenset[int]

    def freed_by(self, values: int) -> int:
        """The values that cannot be differentiated any more after a backward of these."""
        found = 0
        for place, others in enumerate(self.freed_with):
            if values >> place & 1:
                found |= others
        return found


NONE = Savers((), frozenset())


def find_savers(handles: Sequence[torch.Tensor], inputs: Mapping[int, int]) -> Savers:
    """handles: the tensors by which autograd knows the values that can be differentiated. inputs: the index of an input
    by the id of its storage."""
    order = list(reached([handle.grad_fn for handle in handles]))
    coming: dict[Any, int] = {}
    for place, handle in enumerate(handles):
        coming[handle.grad_fn] = coming.get(handle.grad_fn, 0) | 1 << place
    freed_with = [0] * len(handles)
    read: set[int] = set()
    for node in reversed(order):  # each node after all that lead to it
        values = coming.get(node, 0)
        for edge, _ in node.next_functions:
            if edge is not None:
                coming[edge] = coming.get(edge, 0) | values
        saved = _saved_by(node) if values else None
        if saved is None:
            continue
        read.update(inputs[id(one.storage)] for one in saved if one.is_input and id(one.storage) in inputs)
        for place in range(len(handles)):
            if values >> place & 1:
                freed_with[place] |= values
    return Savers(tuple(freed_with), frozenset(read))


@functools.cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    names = frozenset(dir(kind))
    return tuple(sorted(name for name in names if name.startswith("_saved_") and f"_raw{name}" in names))


@dataclass(frozen=True, slots=True)
class _Saved:
    """The storage of something that was saved, and whether that is an input itself."""

    storage: FakeStorage
    is_input: bool


def _saved_by(node: Any) -> list[_Saved] | None:
    """The fake tensors among what a node has saved; None if it has saved no tensor at all."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        found: Sequence[Any] = [_unpacked(node, "saved_tensors")]
    elif type(node).__name__ == "CopySlices":  # has a node inside, which is not shown, and is freed with it
        return []
    else:
        kind: Any = type(node)
        found = [_unpacked(node, name) for name in _names_of_saved(kind)]
    flat = [one for part in found for one in (part if isinstance(part, tuple) else (part,)) if one is not None]
    return [_Saved(one.fake_storage, one.is_input) for one in flat if isinstance(one, FakeTensor)] if flat else None


def _unpacked(node: Any, name: str) -> Any:
    try:
        return getattr(node, name)
    except RuntimeError:  # the program itself has written to it since: autograd will say so
        return False
