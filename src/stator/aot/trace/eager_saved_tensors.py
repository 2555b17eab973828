"""What autograd's nodes of a traced program save when the program runs in eager: which of them a backward runs, frees
and must not find written to.

A compiled step saves other values, and has one node for many; what eager would refuse is known from here. What is
computed, and what a compiled forward saves, is not known here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.graph.fake.fake_mode import FakeMode, FakeStorage, FakeTensor
from stator.prims.record import TensorMeta

from .autograd_reachability import leaf_places, reached
from .multi_output_nodes import Handle

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Savers:
    """Nodes that save tensors, those together that the same values lead to and that lead to the same places.

    Sets are bits of a number: of values by their place among those that can be differentiated; of places by `places`,
    first the inputs, then leaves that the program made, then
    the results. Nodes are counted in the order of `values`.

    values: per class which values lead there. leads: to which places each leads. reach: of each value, to which places
    it leads. inputs, results: per class what was saved that others may write to, by index and by position. itself:
    inputs that were saved as such, not as a view: what is in them when the backward runs is read.
    """

    values: tuple[int, ...]
    leads: tuple[int, ...]
    reach: tuple[int, ...]
    places: Mapping[int, int]  # bit of a result, by its position
    inputs: tuple[frozenset[int], ...]
    results: tuple[frozenset[int], ...]
    itself: frozenset[int] = frozenset()
    _run: dict[tuple[int, int], int] = field(default_factory=dict, compare=False)
    _watched: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict, compare=False)

    def run(self, values: int, places: int) -> int:
        """The classes that a backward runs which comes from these values and asks for gradients of these places."""
        found = self._run.get((values, places))
        if found is None:
            pairs = zip(self.values, self.leads, strict=True)
            found = sum([1 << at for at, (one, leads) in enumerate(pairs) if one & values and leads & places])
            self._run[values, places] = found
        return found

    def watched(self, classes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What these classes saved that others may write to: indices of inputs, positions of results."""
        found = self._watched.get(classes)
        if found is None:
            chosen = [at for at in range(len(self.values)) if classes >> at & 1]
            inputs = sorted({index for at in chosen for index in self.inputs[at]})
            results = sorted({position for at in chosen for position in self.results[at]})
            found = self._watched[classes] = tuple(inputs), tuple(results)
        return found

    def left(self, freed: int) -> tuple[int, ...]:
        """To which places each value still leads, past nothing that was freed."""
        left = list(self.reach)
        for at, (values, leads) in enumerate(zip(self.values, self.leads, strict=True)):
            if freed >> at & 1:
                for value in range(len(left)):
                    if values >> value & 1:
                        left[value] &= ~leads
        return tuple(left)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A fake tensor as it was when an operator got it."""

    meta: TensorMeta
    requires_grad: bool
    storage: FakeStorage


@dataclass(frozen=True, slots=True)
class WriteToView:
    """An operator that wrote to a view of something: autograd hides its node in one of the base.

    arguments: positional and by name, flat, with an `_Operand` for each fake tensor; the first is what was written to.
    """

    func: OpOverload
    arguments: Sequence[Any]
    spec: pytree.TreeSpec

    @staticmethod
    def of(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WriteToView:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        operands = [
            _Operand(one.meta, one.requires_grad, one.fake_storage) if isinstance(one, FakeTensor) else one
            for one in leaves
        ]
        return WriteToView(func, operands, spec)

    def saved(self) -> list[FakeStorage]:
        """Storages of what the hidden node saved: the same operator is run again on what is no view."""
        known: dict[int, FakeStorage] = {}
        mode = FakeMode()
        try:
            with mode, torch.enable_grad():
                leaves = [self._again(mode, one, known) if isinstance(one, _Operand) else one for one in self.arguments]
                args, kwargs = pytree.tree_unflatten(leaves, self.spec)
                self.func(*args, **kwargs)
                saved = _saved_by(args[0].grad_fn, {}) or ()
                return [known[id(one.storage)] for one in saved if id(one.storage) in known]
        finally:
            mode.forget()

    def _again(self, mode: FakeMode, operand: _Operand, known: dict[int, FakeStorage]) -> FakeTensor:
        made = mode.make(operand.meta, requires_grad=operand.requires_grad)
        if operand is self.arguments[0] and operand.requires_grad:  # a leaf cannot be written to
            made = made.clone()  # type: ignore[assignment]
        known[id(made.fake_storage)] = operand.storage
        return made


NONE = Savers((), (), (), {}, (), ())


def find_savers(
    handles: Mapping[int, Handle],
    primals: Mapping[int, Tensor],
    made_leaves: int,
    results: Mapping[int, Handle],
    inputs: Mapping[int, int],
    contents: Mapping[int, int],
    writes: Mapping[int, WriteToView],
) -> Savers:
    """handles: what autograd knows the values by that can be differentiated, by position. primals: those
    that require grad, by index; made_leaves: the place of other leaves, behind all of these. results: what the caller
    gets, by position. inputs, contents: index of the input, or position of the value, by the id of its storage, where
    others may write there and autograd would notice. writes: to views, by the number of the node that autograd gave the
    base."""
    places = {position: made_leaves + 1 + at for at, position in enumerate(results)}
    of_result: dict[Any, int] = {}
    for position, one in results.items():
        if one.grad_fn is not None:
            of_result[one.grad_fn] = of_result.get(one.grad_fn, 0) | 1 << places[position]
    leads = reached(
        [handle.grad_fn for handle in handles.values()],
        leaf_places(primals, made_leaves),
        lambda edge: (of_result.get(edge[0], 0), True),
    )
    reach = tuple([leads[handle.grad_fn] for handle in handles.values()])
    coming: dict[Any, int] = {}
    for at, handle in enumerate(handles.values()):
        coming[handle.grad_fn] = coming.get(handle.grad_fn, 0) | 1 << at
    classes: dict[tuple[int, int], tuple[set[int], set[int]]] = {}
    itself = set()
    for node in reversed(leads):  # each after all that lead to it
        values = coming.get(node, 0)
        for edge, _ in node.next_functions:
            if edge is not None:
                coming[edge] = coming.get(edge, 0) | values
        saved = _saved_by(node, writes) if values and leads[node] else None
        if saved is None:
            continue
        of_inputs, of_results = classes.setdefault((values, leads[node]), (set(), set()))
        for tensor in saved:
            storage = id(tensor.storage)
            if storage in inputs:
                of_inputs.add(inputs[storage])
                itself.update([inputs[storage]] if tensor.is_input else [])
            elif storage in contents:
                of_results.add(contents[storage])
    return Savers(
        tuple([values for values, _ in classes]),
        tuple([found for _, found in classes]),
        reach,
        places,
        tuple([frozenset(one) for one, _ in classes.values()]),
        tuple([frozenset(one) for _, one in classes.values()]),
        frozenset(itself),
    )


@functools.cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    names = frozenset(dir(kind))
    return tuple(sorted(name for name in names if name.startswith("_saved_") and f"_raw{name}" in names))


@dataclass(frozen=True, slots=True)
class _Saved:
    """The storage of something that was saved, and whether that is an input itself."""

    storage: FakeStorage
    is_input: bool


def _saved_by(node: Any, writes: Mapping[int, WriteToView]) -> list[_Saved] | None:
    """Of the fake tensors that a node has saved; None if it has saved no tensor at all."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        found: Sequence[Any] = [_unpacked(node, "saved_tensors")]
    elif type(node).__name__ == "CopySlices":  # has a node inside, which is not shown, and is freed with it
        write = writes.get(node._sequence_nr())
        return [] if write is None else [_Saved(storage, False) for storage in write.saved()]
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
