"""Finds what the autograd nodes of a traced program save when the program runs in eager mode.

A compiled step is one node instead of many, and saves other values. These facts say which results can still be
differentiated after a backward of others, and which inputs eager reads when the backward runs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.aot.runtime.autograd_reachability import reachable_places
from stator.graph.fake.fake_mode import FakeStorage, FakeTensor


@dataclass(frozen=True, slots=True)
class EagerSaves:
    """What eager saves. Sets of values are bits of a number: each value by its place among the differentiable ones.

    freed_with: per value, the values that share a saving node with it; a backward of this value frees what those need.
    inputs: indices of inputs that eager saves themselves, not as views; a backward reads their contents when it runs.
    """

    freed_with: tuple[int, ...]
    inputs: frozenset[int]

    def freed_by(self, values: int) -> int:
        """The values that cannot be differentiated again after a backward of `values`."""
        found = 0
        for place, others in enumerate(self.freed_with):
            if values >> place & 1:
                found |= others
        return found


NO_SAVES = EagerSaves((), frozenset())


def find_eager_saves(handles: Sequence[torch.Tensor], inputs: Mapping[int, int]) -> EagerSaves:
    """handles: the tensors through which autograd knows the differentiable values.
    inputs: the index of an input by the id of its storage.
    """
    order = list(reachable_places([handle.grad_fn for handle in handles]))
    coming: dict[Any, int] = {}
    for place, handle in enumerate(handles):
        coming[handle.grad_fn] = coming.get(handle.grad_fn, 0) | 1 << place
    freed_with = [0] * len(handles)
    read: set[int] = set()
    for node in reversed(order):  # each node comes after all nodes that lead to it
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
    return EagerSaves(tuple(freed_with), frozenset(read))


@functools.cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    names = frozenset(dir(kind))
    return tuple(sorted(name for name in names if name.startswith("_saved_") and f"_raw{name}" in names))


@dataclass(frozen=True, slots=True)
class _Saved:
    """The storage of a saved tensor, and whether the tensor is itself an input."""

    storage: FakeStorage
    is_input: bool


def _saved_by(node: Any) -> list[_Saved] | None:
    """The fake tensors that a node has saved; None if it saved no tensor at all."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        found: Sequence[Any] = [_unpacked(node, "saved_tensors")]
    elif type(node).__name__ == "CopySlices":  # its inner node is hidden, and is freed with it
        return []
    else:
        kind: Any = type(node)
        found = [_unpacked(node, name) for name in _names_of_saved(kind)]
    flat = [one for part in found for one in (part if isinstance(part, tuple) else (part,)) if one is not None]
    return [_Saved(one.fake_storage, one.is_input) for one in flat if isinstance(one, FakeTensor)] if flat else None


def _unpacked(node: Any, name: str) -> Any:
    try:
        return getattr(node, name)
    except RuntimeError:  # the program wrote to the value since: autograd reports that itself
        return False
