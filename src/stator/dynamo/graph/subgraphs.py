"""Parts of a captured program that become graphs of their own, because they run later or are transformed: their inputs,
and the checks on their changes. Calls of such parts are in handlers/, running their graphs in
graph/subgraphs/custom_autograd.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.torch_state import TorchState
from stator.dynamo.values.base import CaptureContext, Raised, Value, unsupported
from stator.dynamo.values.scopes import CellValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.fake.wrapper_subclasses import storages_of, version_of
from stator.graph.ir.aten_graph import LazyGraphModule

from .mutations import Message, MutationLog


class Subgraph:
    """A graph under construction inside another graph. `lifted`: the outer tensors and numbers behind its placeholders,
    in order. `takes_wrappers`: whether its operators may run on wrapper subclasses."""

    def __init__(self, graph: fx.Graph, seen: frozenset[fx.Graph], takes_wrappers: bool = False) -> None:
        self.graph = graph
        self.seen = seen
        self.takes_wrappers = takes_wrappers
        self.lifted: list[TensorValue | SymbolicNumber] = []
        self._versions: list[tuple[TensorValue, int]] = []
        self._nodes: dict[int, fx.Node] = {}
        self._numbers: dict[Any, fx.Node] = {}
        self._last: fx.Node | None = None

    def lift(self, value: TensorValue) -> fx.Node:
        """The placeholder for an outer tensor."""
        node = self._nodes.get(id(value))
        if node is None:
            node = self._nodes[id(value)] = self.placeholder(value.fake)
            self.lifted.append(value)
            self._versions.append((value, version_of(value.fake)))
        return node

    def lift_number(self, value: SymbolicNumber, example: Any) -> fx.Node:
        """The placeholder for a Python number that changes from call to call."""
        node = self._numbers.get(value.expression)
        if node is None:
            node = self._numbers[value.expression] = self.placeholder(example)
            self.lifted.append(value)
        return node

    def outer_nodes(self) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Placeholders, each with the node of the outer tensor that it stands for."""
        for value, _ in self._versions:
            if value.node is not None:
                yield self._nodes[id(value)], value.node

    def placeholder(self, fake: Any) -> fx.Node:
        graph, last = self.graph, self._last
        first = next(iter(graph.nodes), None)
        where = graph.inserting_after(last) if last is not None else graph.inserting_before(first)
        with where:
            node = graph.placeholder(f"arg_{sum(one.op == 'placeholder' for one in graph.nodes)}")
        node.meta["example_value"] = fake
        self._last = node
        return node

    def written(self) -> list[TensorValue]:
        """Outer tensors that the subgraph, or code after its first read, wrote to."""
        return [value for value, version in self._versions if version_of(value.fake) != version]

    def finish(self, outputs: Sequence[fx.Node | None]) -> fx.GraphModule:
        self.graph.output(tuple(outputs))
        return LazyGraphModule(torch.nn.Module(), self.graph, "Part")


@contextmanager
def own_state(what: str, *, grad_mode: bool, autocast: bool = True) -> Iterator[None]:
    """Torch's modes for following a part: this grad mode, and no autocast if `autocast` is False. Raises Unsupported if
    the captured code leaves modes changed, except for the grad mode, which the part's caller restores."""
    entry = TorchState.now()
    try:
        torch._C._set_grad_enabled(grad_mode)
        for device in () if autocast else ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)
        before = TorchState.now()
        yield
        torch._C._set_grad_enabled(grad_mode)
        if TorchState.now() != before:
            raise unsupported("mutation", f"{what} leaves torch's modes changed")
    finally:
        entry.restore()


@dataclass(slots=True)
class DeferredCode:
    """Code that capture follows now and that runs later: a backward, a hook.

    differentiates: for gradients of custom functions that are themselves differentiated: the functions whose backwards
    are being followed, outermost first."""

    what: str
    asks_grad_mode: bool = False
    differentiates: tuple[type, ...] = ()


@contextmanager
def deferred(context: CaptureContext, what: str, *roots: Value) -> Iterator[DeferredCode]:
    """The captured code in the block runs later. Raises Unsupported if the code changes older objects, or reads state
    that may differ later. `roots`: the objects that the code can reach."""
    mutations, later = context.mutations, context.later
    context.mutations, context.later = _NoOutsideChanges(what, reachable(roots)), DeferredCode(what)
    try:
        yield context.later
    except Raised as raised:
        name = class_name(raised.value.python_type(context))
        raise unsupported("deferred-effect", f"{what} raises {name}") from raised
    finally:
        context.mutations, context.later = mutations, later


@contextmanager
def outside_unchanged(
    context: CaptureContext,
    what: str,
    *roots: Value,
    messages: list[Message] | None = None,
) -> Iterator[None]:
    """The captured code in the block runs more than once. Raises Unsupported if the code changes older objects or
    tensors. `roots`: the objects that the code can reach. `messages`: collects the code's output for the caller; None
    forbids output."""
    mutations, recorder = context.mutations, context.recorder
    known, writes = len(recorder.by_fake), len(recorder.writes)
    context.mutations = _NoOutsideChanges(what, reachable(roots), messages)
    try:
        yield
    finally:
        context.mutations = mutations
    written = {id(storage) for storage in recorder.writes[writes:]}
    for at, value in enumerate(list(recorder.by_fake.values()) if written else ()):
        outside = at < known or value.obj is not None
        if outside and not written.isdisjoint(map(id, storages_of(value.fake))):
            raise unsupported("deferred-effect", f"{what} writes to {value.describe(context)}")


class _NoOutsideChanges(MutationLog):
    """Refuses changes of older objects; new objects may change."""

    def __init__(self, what: str, protected: dict[int, Any], messages: list[Message] | None = None) -> None:
        super().__init__()
        self.what = what
        self.protected = protected
        self.messages = messages

    def _refuse_outside(self, value: Value) -> None:
        if value.source is not None or id(value) in self.protected:
            raise unsupported("deferred-effect", f"{self.what} changes an object that outlives it")

    def content(self, value: Value) -> None:
        self._refuse_outside(value)

    def attribute(self, value: Value, name: str) -> None:
        self._refuse_outside(value)

    def cell(self, cell: CellValue) -> None:
        if cell.frame_name is not None:
            raise unsupported("deferred-effect", f"{self.what} changes a variable of the captured function")
        self._refuse_outside(cell)

    def scope(self, scope: Any) -> None:
        raise unsupported("deferred-effect", f"{self.what} changes a global variable")

    def message(self, message: Message) -> None:
        if self.messages is not None:
            self.messages.append(message)
            return
        raise unsupported("deferred-effect", f"{self.what} prints, logs or warns")

    def iterator(self, iterator: Any) -> None:
        raise unsupported("deferred-effect", f"{self.what} advances an iterator that outlives it")


def reachable(roots: tuple[Value, ...]) -> dict[int, Any]:
    """All values that can be reached from these values, by id."""
    found: dict[int, Any] = {}
    todo: list[Any] = list(roots)
    while todo:
        one = todo.pop()
        if id(one) in found:
            continue
        if isinstance(one, Value):
            found[id(one)] = one
            todo += [getattr(one, slot, None) for slot in slots_of(type(one)) if slot not in _REAL]
        elif type(one) in (list, tuple):
            found[id(one)] = one
            todo += one
        elif type(one) is dict:
            found[id(one)] = one
            todo += [*one, *one.values()]
    return found


_REAL = frozenset({"obj", "real_dict", "fn", "cell", "scope", "code", "fake", "node", "source"})  # hold no values


_slots: dict[type, tuple[str, ...]] = {}


def slots_of(kind: type) -> tuple[str, ...]:
    """The names of all slots of a class of values, without those that a property hides."""
    found = _slots.get(kind)
    if found is None:
        names = (name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ()))
        found = _slots[kind] = tuple(name for name in names if type(getattr(kind, name)) is not property)
    return found
