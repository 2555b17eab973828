"""The log of the captured code's changes, which are replayed behind the graph. Output of captured code (prints, logs,
warnings) is replayed in order and from the user's lines."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any

import torch

from stator.dynamo.bytecode import Position
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Effect, Recipe
from stator.dynamo.ir.related_sizes import Layout, StateChange
from stator.dynamo.values.base import Reconstructor, Value, cannot_rebuild
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.live_iterators import LiveIterator
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.scopes import CellValue, GlobalScope
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, example_of_number
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.fake.wrapper_subclasses import storages_of

from .finalizers import check_change

_STATE = (int, bool, NoneType)  # constants in attributes whose replacement is noted


class MutationLog:
    """Entries in the order of each place's last change. Only changes of objects that existed before the frame are
    replayed; objects that the frame made are rebuilt in their final state."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int, str], tuple[str, Any, str]] = {}
        # values of the frame that must not change or leave the graph: (value, description, step at which it was made)
        self.frozen: dict[int, tuple[Value, str, int]] = {}
        self._looked_at: dict[tuple[int, str], Value] = {}  # places whose contents at entry end unobserved
        # by attribute of an existing object: (the object, the first value that was read or written, the last one)
        self._replaced: dict[tuple[int, object], tuple[Value, Any, Any]] = {}

    def freeze(self, value: Value, what: str, made_at: int) -> None:
        self.frozen[id(value)] = value, what, made_at

    def check_free(self, value: Value) -> None:
        """Raises CannotRebuild for a frozen value."""
        found = self.frozen.get(id(value))
        if found is not None:
            raise cannot_rebuild(found[1], found[2])

    def check_free_memory(self, written: TensorValue) -> None:
        """Raises CannotRebuild if a tensor shares memory with a frozen tensor."""
        memory = storages_of(written.fake)
        for value, what, made_at in self.frozen.values():
            fake = getattr(value, "fake", None)
            if fake is not None and any(one in memory for one in storages_of(fake)):
                raise cannot_rebuild(what, made_at)

    def _note(self, kind: str, value: Any, name: str = "") -> None:
        key = (kind, id(value), name)
        self.entries.pop(key, None)
        self.entries[key] = (kind, value, name)

    def content(self, value: Value) -> None:
        if self.frozen:
            self.check_free(value)
        if value.source is not None:
            self._check_ends(value, "", getattr(value, "obj", None))
            self._note("content", value)

    def attribute(self, value: Value, name: str) -> None:
        if self.frozen:
            self.check_free(value)
        if value.source is not None:
            if type(value) is ObjectValue:
                self._check_ends(value, name, (value.instance_dict() or {}).get(name))
            self._note("attribute", value, name)

    def replace(self, value: Value, name: object, old: Any, new: Any) -> None:
        """Note that an attribute, or an entry of a dictionary, gets another value."""
        if isinstance(old, TensorValue) or (type(old) is SourcedConstant and type(old.peek()) in _STATE):
            _, first, _ = self._replaced.get((id(value), name), (value, old, None))
            self._replaced[id(value), name] = value, first, new

    def state_changes(self) -> Iterator[StateChange]:
        """The tensors, ints, truths and Nones of existing objects that the frame replaces by others: such as a cache
        that grows, or is made at first use."""
        for owner, first, last in self._replaced.values():
            if isinstance(first, TensorValue) and isinstance(last, TensorValue):
                layouts = _known_layout(first), _known_layout(last)
                if None not in layouts and layouts[0] != layouts[1]:
                    yield StateChange(first.source, *layouts)  # type: ignore[arg-type]
            elif type(first) is SourcedConstant and first.guarded and type(first.peek()) is not int:
                differs = not isinstance(last, ConstantValue) or last.value is not first.peek()
                if differs and self._got_tensor(owner):
                    yield StateChange(first.source, once=True)
            elif type(first) is SourcedConstant and first.guarded:
                counted = type(last) is SymbolicNumber or (type(last) is ConstantValue and last.value != first.value)
                if counted and last.python_type(None) is int:
                    yield StateChange(first.source)

    def _got_tensor(self, owner: Any) -> bool:
        """Whether the frame wrote a tensor to an attribute of this object."""
        return any(
            isinstance(value, TensorValue) and self.wrote(owner, name)
            for name, value in (owner.attributes or {}).items()
        )

    def _check_ends(self, value: Value, name: str, old: Any) -> None:
        """Raises Unsupported if the program may observe the end of the replaced object."""
        if (id(value), name) not in self._looked_at:
            check_change(old)
            self._looked_at[id(value), name] = value

    def cell(self, cell: CellValue) -> None:
        if cell.source is not None or cell.frame_name is not None:
            self._note("cell", cell)

    def message(self, message: Message) -> None:
        self._note("message", message)

    def iterator(self, iterator: LiveIterator) -> None:
        self._note("iterator", iterator)

    def scope(self, scope: GlobalScope) -> None:
        self._note("scope", scope)

    def touches(self, value: Value) -> bool:
        """Whether the captured code changed this very object."""
        return any(changed is value for _, changed, _ in self.entries.values())

    def wrote(self, value: Value, name: str) -> bool:
        """Whether the captured code wrote this attribute."""
        return ("attribute", id(value), name) in self.entries


def _known_layout(tensor: TensorValue) -> Layout | None:
    """The sizes and strides in this call; None if they depend on data."""
    fake = tensor.fake
    if fake.layout is not torch.strided:
        return None
    shape, stride = (tuple(map(example_of_number, numbers)) for numbers in (fake.shape, fake.stride()))
    return None if None in (*shape, *stride) else (shape, stride)


@dataclass(eq=False, slots=True)
class Message:
    """One call whose result nobody needs: `function(*arguments, **keywords)`, made where the outermost frame stood.

    Arguments are recipes, or values whose recipes are made when the graph ends.
    """

    function: Callable[..., Any]
    arguments: list[Value | Recipe]
    keywords: dict[str, Value | Recipe]
    position: Position

    def effect(self, reconstructor: Reconstructor) -> Effect:
        def recipe(argument: Value | Recipe) -> Recipe:
            return argument if isinstance(argument, Recipe) else reconstructor.recipe(argument)

        keywords = {name: recipe(argument) for name, argument in self.keywords.items()}
        call = CallRecipe(ConstantRecipe(self.function), list(map(recipe, self.arguments)), keywords)
        return Effect(call, self.position)


# ---- functions that compiled code calls ----


def warn_at(message: Any, category: type, filename: str, line: int, namespace: dict[str, Any]) -> None:
    """Warn as warnings.warn() does from this line of a module with these globals."""
    registry = namespace.setdefault("__warningregistry__", {})
    module = namespace.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, line, module, registry)


def log_at(
    logger: logging.Logger, level: int, filename: str, line: int, function: str, message: Any, *arguments: Any
) -> None:
    """Log as the logger does for a call on this line of this function."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, filename, line, message, arguments, None, function))


def error_filters() -> tuple[Any, ...]:
    """The warning filters that turn warnings into exceptions."""
    return tuple(entry for entry in warnings.filters if entry[0] == "error")
