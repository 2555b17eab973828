"""Values -> recipes and effects, when a graph ends. Shared objects stay shared; effects close reference cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import combinations
from types import MethodType
from typing import Any

from stator.dynamo.codegen import support
from stator.dynamo.graph.mutations import Message
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ItemSource, Source
from stator.dynamo.host.numpy_boundary import shared_tensor
from stator.dynamo.host.torch_overrides import plain_tensor
from stator.dynamo.ir.reconstruct_ir import (
    CallRecipe,
    ConstantRecipe,
    Effect,
    FrameCell,
    GetAttr,
    GraphOutput,
    Load,
    NewDict,
    NewList,
    RaisedAt,
    Recipe,
    call_effect,
    call_recipe,
)
from stator.dynamo.values.base import CaptureContext, Lazy, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.deques import DequeValue, replayed
from stator.dynamo.values.containers.live_iterators import LiveIterator
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import AppendOnlyList, ListValue
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.objects import MISSING, ObjectValue, is_hidden
from stator.dynamo.values.scopes import CellValue, GlobalScope
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue

_PAIRS_AT_MOST = 16


class FrameReconstructor:
    """Makes recipes, and collects the graph's outputs and the effects."""

    def __init__(self, context: CaptureContext) -> None:
        self.context = context
        self.outputs: list[TensorValue] = []
        self._output_index: dict[int, GraphOutput] = {}
        self._recipes: dict[int, tuple[Value, Recipe]] = {}
        self.steps: list[Effect] = []  # of iterators, ahead of changes of what they iterate over
        self.marks: list[Effect] = []  # constants on new functions: classes look at them as they are made
        self.fills: list[Effect] = []  # contents of new objects, before the replayed mutations
        self.effects: list[Effect] = []
        self.late: list[Effect] = []  # where iterators are, which may be over what those change
        self._changed: dict[int, Value] = {}  # objects with effects, which are not to be other ones that were read
        self._changed_cells: list[CellValue] = []  # the same of cells
        self._shared_cells: set[int] = set()  # ids of cells that some object holds

    def recipe(self, value: Value) -> Recipe:
        if type(value) is CellValue:
            self._shared_cells.add(id(value))
        return self._recipe(value)

    def variable_cell(self, cell: CellValue) -> Recipe:
        """The recipe of the cell of a frame's variable, for the frame itself."""
        return self._recipe(cell)

    def is_private(self, cell: CellValue) -> bool:
        """Whether only a frame holds the cell, as far as recipes have been made."""
        return not cell.was_shared and id(cell) not in self._shared_cells

    def _recipe(self, value: Value) -> Recipe:
        known = self._recipes.get(id(value))
        if known is None:
            self.context.mutations.check_free(value)
            made = value.recipe(self)
            known = self._recipes.setdefault(id(value), (value, made))
        return known[1]

    def remember(self, value: Value, recipe: Recipe) -> None:
        """Record a value's recipe before the recipes of its parts, so that cycles end."""
        self._recipes[id(value)] = (value, recipe)

    def graph_output(self, value: TensorValue) -> GraphOutput:
        made = self._output_index.get(id(value))
        if made is None:
            self.context.recorder.check_reachable(value)
            made = self._output_index[id(value)] = GraphOutput(len(self.outputs))
            self.outputs.append(value)
        return made

    def set_attr(self, target: Recipe, name: str, value: Value) -> None:
        self.fills.append(call_effect(setattr, target, ConstantRecipe(name), self.recipe(value)))

    def made_of_class(self, value: ObjectValue, made: Recipe) -> Recipe:
        """The recipe of an instance of a program's class; effects fill the instance."""
        known = self._recipes.get(id(value))
        if known is not None:  # the instance holds itself, so the recipes of its parts made it
            return known[1]
        self.remember(value, made)
        self.fill(value, made)
        return made

    def fill(self, value: ObjectValue, made: Recipe) -> None:
        """Add effects for the contents and attributes of an object that the frame made."""
        if isinstance(value, DictValue) and value.entries:
            self.fills.append(call_effect(support.replace_dict, made, NewDict(self.dict_items(value))))
        elif isinstance(value, ListValue) and value.items:
            self.fills.append(call_effect(support.replace_list, made, self._listed(value.items)))
        elif isinstance(value, DequeValue) and value.known_items:
            self.fills.append(call_effect(deque.extend, made, self._listed(value.known_items)))
        elif isinstance(value, SetValue) and value.members and not issubclass(value.cls, frozenset):
            self.fills.append(call_effect(support.replace_set, made, self._listed(value.members.values())))
        for name, attribute in (value.attributes or {}).items():
            if attribute is not MISSING:
                self.fills.append(_own_attribute_effect(made, value.cls, name, self.recipe(attribute)))

    def _listed(self, items: Iterable[Value]) -> NewList:
        return NewList([self.recipe(item) for item in items])

    def is_made(self, value: Value) -> bool:
        return id(value) in self._recipes

    def dict_items(self, value: DictValue) -> list[tuple[Recipe, Recipe]]:
        return [(self.recipe(key), self.recipe(item)) for key, item in value.items(self.context)]

    def string_dict(self, values: dict[str, Value]) -> Recipe:
        return NewDict([(ConstantRecipe(name), self.recipe(value)) for name, value in values.items()])

    def only_reads(self) -> bool:
        """Whether the frame made and changed nothing: each value is still where the frame found it."""
        context = self.context
        if self.marks or self.fills or self.effects or self.late:
            return False
        if context.draws:
            return False
        return all(_is_found(recipe) for _, recipe in self._recipes.values())

    # -- the mutation log --
    def replay(self, *, ends: bool) -> None:
        """`ends`: the frame returns. Cells that only the frame holds end with it, so nobody sees what they contain."""
        postponed: list[CellValue] = []
        for kind, value, name in list(self.context.mutations.entries.values()):
            if ends and kind == "cell" and self.is_private(value):
                postponed.append(value)
            else:
                _REPLAY[kind](self, value, name)
        while shared := [cell for cell in postponed if not self.is_private(cell)]:
            postponed = [cell for cell in postponed if self.is_private(cell)]
            for cell in shared:
                self._cell(cell, "")

    def _content(self, value: Any, name: str) -> None:
        target = self.recipe(value)
        if isinstance(value, DictValue) and self._holds_the_same(value):
            return
        if isinstance(value, DictValue):
            again = [self.recipe(key) for real, key in value.dropped.items() if real in value.entries]
            items = NewDict(self.dict_items(value))
            self.effects.append(call_effect(support.replace_dict, target, items, *again))
        elif isinstance(value, AppendOnlyList) and value.only_appended:
            self.effects.append(call_effect(list.extend, target, self._listed(value.appended)))
        elif isinstance(value, ListValue):
            self.effects.append(call_effect(support.replace_list, target, self._listed(value.items)))
        elif isinstance(value, DequeValue):
            self.effects.extend(replayed(value, target, self))
        elif isinstance(value, SetValue):
            self.effects.append(call_effect(support.replace_set, target, self._listed(value.members.values())))
        else:
            raise unsupported("mutation", f"changing {value.describe(self.context)}")
        self._changed[id(value)] = value

    def _holds_the_same(self, value: DictValue) -> bool:
        """Whether a written dictionary has its entries from entry again, in order."""
        real = value.obj
        if real is None or value.drops or list(real) != list(value.entries):
            return False
        written = [(key, item) for key, item in value.entries.items() if type(item) is not Lazy]
        if not all(self.context.wrapped.get(id(real[key])) is item for key, item in written):
            return False
        for key, item in written:
            at_entry = ItemSource(value.source, key)  # type: ignore[arg-type]
            if item.source != at_entry:
                self.context.guard(at_entry, GuardKind.SAME, item.source)
        return True

    def _attribute(self, value: ObjectValue, name: str) -> None:
        target = self.recipe(value)
        now = (value.attributes or {}).get(name, MISSING)
        own = not isinstance(value, TensorValue)
        if own and self._is_as_before(value, name, now):
            return
        if now is not MISSING and own:
            self.effects.append(_own_attribute_effect(target, value.cls, name, self.recipe(now)))
        elif now is not MISSING:
            self.effects.append(call_effect(setattr, target, ConstantRecipe(name), self.recipe(now)))
        elif value.obj is not None and (name in (value.instance_dict() or {})):
            delete = dict.__delitem__ if is_hidden(value.cls, name) else object.__delattr__ if own else delattr
            holder = GetAttr(target, "__dict__") if delete is dict.__delitem__ else target
            self.effects.append(call_effect(delete, holder, ConstantRecipe(name)))
        self._changed[id(value)] = value

    def _is_as_before(self, value: ObjectValue, name: str, now: Any) -> bool:
        """Whether an attribute was set and put back, so that nothing is to replay."""
        at_entry = ItemSource(value.dict_source, name)  # type: ignore[arg-type]
        if type(now) is SymbolicNumber and now.source is not None:
            return now.source == at_entry
        return self._is_put_back((value.instance_dict() or {}).get(name, MISSING), now, at_entry)

    def _is_put_back(self, before: Any, now: Value | None, at_entry: Source) -> bool:
        """Whether `now` is the constant from before; relied on by a guard."""
        if before is MISSING or not isinstance(now, ConstantValue) or not self.context.is_constant_object(before):
            return False
        if type(before) is not type(now.value) or before != now.value:
            return False
        self.context.guard(at_entry, GuardKind.EQUALS, before)
        return True

    def _cell(self, cell: CellValue, name: str) -> None:
        content = self.recipe(cell.content) if cell.content is not None else None
        target = self._recipe(cell)
        if content is None:
            self.effects.append(call_effect(support.clear_content, target))
        else:
            self.effects.append(call_effect(support.set_content, target, content))
        if cell.cell is not None:
            self._changed_cells.append(cell)

    def _iterator(self, iterator: LiveIterator, name: str) -> None:
        self.steps.append(iterator.advance())

    def _message(self, message: Message, name: str) -> None:
        self.effects.append(message.effect(self))

    def _scope(self, scope: GlobalScope, name: str) -> None:
        for key, value in scope.written.items():
            if value is None and key not in scope.names:
                continue  # created and deleted again; a guard relies on its absence at entry
            if self._is_put_back(scope.names.get(key, MISSING), value, scope.source_of(key)):
                continue
            if not scope.own and scope.module is None:
                raise unsupported("mutation", "writing globals that belong to no module")
            target = call_recipe(globals) if scope.own else ConstantRecipe(scope.names), ConstantRecipe(key)
            if value is None:
                self.effects.append(call_effect(dict.__delitem__, *target))
            else:
                self.effects.append(call_effect(dict.__setitem__, *target, self.recipe(value)))

    def rely_on_distinct_objects(self) -> None:
        """Guard that a changed object is none of the objects that capture read by other sources."""
        by_kind: dict[type, list[Any]] = {}
        for value in list(self.context.wrapped.values()) if self._changed else ():
            if value.source is not None and isinstance(value, (ObjectValue, TensorValue)):
                by_kind.setdefault(value.python_type(self.context), []).append(value)
        changed: dict[type, list[Any]] = {}
        for value in self._changed.values():
            changed.setdefault(value.python_type(self.context), []).append(value)
        for kind, values in changed.items():
            others = [other for other in by_kind.get(kind, ()) if not getattr(other, "is_static", False)]
            self._guard_distinct(values, others)
        for cell in self._changed_cells:
            for other in self.context.real_cells.values():
                if other is not cell and not (cell.fixed and other.fixed):
                    self.context.guard(other.place(self.context), GuardKind.DISTINCT, cell.place(self.context))

    def rely_on_distinct_iterators(self) -> None:
        """Guard that iterators with read-ahead items are distinct objects."""
        for one, other in combinations(self.context.live_iterators.values(), 2):
            if one.cls is other.cls:
                self.context.guard(one.source, GuardKind.DISTINCT, other.source)  # type: ignore[arg-type]

    def rely_on_distinct_inputs(self) -> None:
        """Guard that an input which the graph writes to is no other input."""
        recorder = self.context.recorder
        written = [value for value in recorder.input_values if id(value) in recorder.written]
        for static in (True, False):  # identity guards distinguish static inputs already
            others = [other for other in recorder.input_values if not (static and other.is_static)]
            self._guard_distinct([value for value in written if value.is_static is static], others)

    def _guard_distinct(self, values: list[Any], others: list[Any]) -> None:
        """Guard that no value is one of `others`: by pairs, or by one guard if there are many pairs."""
        if len(values) * len(others) > _PAIRS_AT_MOST:
            sources = {id(value): _object_source(value) for value in (*values, *others)}
            self.context.guard(sources[id(values[0])], GuardKind.ALL_DISTINCT, tuple(sources.values()))
            return
        for value in values:
            for other in others:
                if other is not value:
                    self.context.guard(_object_source(value), GuardKind.DISTINCT, _object_source(other))


def _own_attribute_effect(target: Recipe, cls: type, name: str, value: Recipe) -> Effect:
    """An attribute write past any __setattr__ and past a descriptor of the class that hides the object's own entry."""
    if is_hidden(cls, name):
        return call_effect(dict.__setitem__, GetAttr(target, "__dict__"), ConstantRecipe(name), value)
    return call_effect(object.__setattr__, target, ConstantRecipe(name), value)


def _is_found(recipe: Recipe) -> bool:
    bound = isinstance(recipe, CallRecipe) and isinstance(recipe.function, ConstantRecipe)
    if bound and recipe.function.value is MethodType:  # type: ignore[attr-defined]
        return True  # each read of a bound method makes a new one
    return isinstance(recipe, (Load, ConstantRecipe, FrameCell, RaisedAt))


def _object_source(value: Any) -> Source:
    """The source of the program's own object, for a temporary tensor on the memory of an array or tensor subclass."""
    source = value.source
    return source.args[0] if type(source) is CallSource and source.function in (shared_tensor, plain_tensor) else source


_REPLAY: dict[str, Callable[[FrameReconstructor, Any, str], None]] = {
    "content": FrameReconstructor._content,
    "attribute": FrameReconstructor._attribute,
    "cell": FrameReconstructor._cell,
    "iterator": FrameReconstructor._iterator,
    "message": FrameReconstructor._message,
    "scope": FrameReconstructor._scope,
}
