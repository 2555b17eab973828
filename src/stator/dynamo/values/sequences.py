"""What sequences share; lists, tuples and their subclasses, and their methods: real Python lists of Values.

Deques and sets have files of their own beside this one.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from stator.base.registry import Registry

from ..emit import support
from ..recipe import CallRecipe, Constant, Load, NewList, NewObject, NewTuple, Recipe
from ..source import Source
from .base import Lazy, NotConstant, Raised, Value, unsupported
from .constants import ConstantValue
from .iterators import ContainerIterator
from .objects import MISSING, ObjectValue, new_of_layout
from .slices import SliceValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

Method = Callable[..., Value]
list_methods: Registry[str, Method] = Registry("list method")
tuple_methods: Registry[str, Method] = Registry("tuple method")


class SequenceValue(ObjectValue):
    """What list, tuple and deque share. `items` may hold Lazy entries; everything read out is realised."""

    __slots__ = ("items",)
    methods: Registry[str, Method]
    builtin: type
    iterator_at = staticmethod(support.iterator_at)

    def __init__(
        self, items: list[Value], source: Source | None = None, cls: type | None = None, obj: Any = None
    ) -> None:
        super().__init__(self.builtin if cls is None else cls, obj, source)
        self.items = items

    def at(self, tracer: Tracer, index: int) -> Value:
        item = self.items[index]
        if type(item) is Lazy:
            item = self.items[index] = item.realize(tracer)
        return item

    def truth(self, tracer: Tracer) -> bool:
        return tracer.override_truth(self, bool(self.items))

    def length(self, tracer: Tracer) -> int:
        if self.cls is not self.builtin and self.special(tracer, "__len__") is not None:
            return super().length(tracer)
        return len(self.items)

    def iterate(self, tracer: Tracer) -> Iterator[Value]:
        if self.cls is not self.builtin and self.special(tracer, "__iter__") is not None:
            return super().iterate(tracer)
        return self.raw_items(tracer)

    def raw_items(self, tracer: Tracer) -> Iterator[Value]:
        at = 0
        while at < len(self.items):  # the program may change the list while it iterates
            yield self.at(tracer, at)
            at += 1

    def iterator(self, tracer: Tracer) -> Value:
        if self.cls is not self.builtin and self.special(tracer, "__iter__") is not None:
            return super().iterator(tracer)
        return self.forwards(tracer)

    def forwards(self, tracer: Tracer) -> ContainerIterator:
        kind = type(iter(self.builtin()))
        return ContainerIterator(self, self.raw_items(tracer), self.iterator_at, kind, made_at=tracer.end_step())

    def backwards(self, tracer: Tracer) -> ContainerIterator:
        start = len(self.items)

        def items() -> Iterator[Value]:
            for at in range(start - 1, -1, -1):
                if at < len(self.items):
                    yield self.at(tracer, at)

        kind = type(reversed(self.builtin()))
        make = self.reversed_at(start)
        return ContainerIterator(self, items(), make, kind, made_at=tracer.end_step(), start=start)

    def reversed_at(self, start: int) -> Callable[[Any, int], Any]:
        """Makes an iterator backwards over the real sequence, of `start` items, that has given some already."""
        return lambda sequence, taken: support.reversed_at(sequence, start - 1 - taken)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        if self.cls is not self.builtin and self.special(tracer, "__contains__") is not None:
            return super().contains(tracer, item)
        return any(tracer.same(mine, item) or tracer.equal(mine, item) for mine in self.raw_items(tracer))

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if self.cls is not self.builtin and self.special(tracer, "__getitem__") is not None:
            return super().get_item(tracer, key)
        return self.raw_get_item(tracer, key)

    def raw_get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(key, SliceValue):
            bounds = tracer.constant_of(key, "slice bounds")
            part = tracer.run_real(operator.getitem, (self.items, bounds))
            if self.cls is tuple and bounds.indices(len(self.items)) == (0, len(self.items), 1):
                return self  # all of a tuple is the tuple
            return self.rebuilt(part)
        index = self._index(tracer, key)
        if not -len(self.items) <= index < len(self.items):
            raise tracer.raised(IndexError, f"{self.builtin.__name__} index out of range")
        return self.at(tracer, index)

    def _index(self, tracer: Tracer, key: Value) -> int:
        if tracer.class_lookup(key.python_type(tracer), "__index__") is MISSING:
            raise unsupported("subscript", f"{key.describe(tracer)} as an index, which is refused")
        return tracer.index_of(key)

    def rebuilt(self, items: list[Value]) -> Value:
        """A plain container of this kind with other items."""
        return type(self)(items)

    def builtin_method(self, tracer: Tracer, name: str) -> Callable[..., Value] | None:
        found = self.methods.get(name)
        return found or super().builtin_method(tracer, name)


class TupleValue(SequenceValue):
    """A tuple; `cls` may be a named tuple class or torch.Size."""

    __slots__ = ()
    builtin: type = tuple
    methods = tuple_methods

    def constant(self) -> Any:
        items = tuple(item.constant() for item in self.items)
        if self.cls is tuple:
            return items
        if new_of_layout(self.cls) is not tuple.__new__:  # torch.Size and the struct sequences of C
            return self.cls(items)
        if self.attributes:
            raise NotConstant
        return tuple.__new__(self.cls, items)

    def rebuilt(self, items: list[Value]) -> Value:
        """Slices, sums and repetitions of a torch.Size are one again; of other subclasses they are plain tuples."""
        return TupleValue(items, cls=torch.Size if self.cls is torch.Size else tuple)

    @property
    def is_named(self) -> bool:
        return hasattr(self.cls, "_fields")

    def slot(self, tracer: Tracer, name: str, descriptor: Any) -> Value:
        """A field of a C struct sequence, such as torch.return_types.max."""
        fields = getattr(self.cls, "__match_args__", ())
        return self.at(tracer, fields.index(name)) if name in fields else super().slot(tracer, name, descriptor)

    def key(self, tracer: Tracer) -> Any:
        return tuple(tracer.realized(item).key(tracer) for item in self.items)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None and self.obj is not None:
            return Load(self.source)
        made = NewTuple([exits.recipe(item) for item in self.items])
        if self.cls is tuple:
            return made
        if new_of_layout(self.cls) is not tuple.__new__:  # torch.Size and the struct sequences of C
            return CallRecipe(Constant(self.cls), [made])
        return exits.made_of_class(self, NewObject(Constant(self.cls), tuple.__new__, [made]))


class ListValue(SequenceValue):
    """A list."""

    __slots__ = ()
    builtin: type = list
    methods = list_methods

    def constant(self) -> list[Any]:
        if self.cls is not list:
            raise NotConstant
        return [item.constant() for item in self.items]

    def key(self, tracer: Tracer) -> Any:
        raise tracer.raised(TypeError, "unhashable type: 'list'")

    def changed(self, tracer: Tracer) -> None:
        tracer.mutations.content(self)

    def add(self, *items: Value) -> None:
        """Put items at the end."""
        self.items.extend(items)

    def extend(self, tracer: Tracer, more: Value) -> None:
        """Put what `more` iterates over at the end, one by one: a generator may look at the list meanwhile, and what
        came before an exception stays."""
        self.changed(tracer)
        if isinstance(more, SequenceValue):  # which may be this very list
            self.add(*tracer.iterate(more))
        else:
            for item in tracer.listed(more):
                self.add(item)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if self.cls is not self.builtin and self.special(tracer, "__setitem__") is not None:
            super().set_item(tracer, key, value)
        else:
            self.raw_set_item(tracer, key, value)

    def raw_set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if isinstance(key, SliceValue):
            items = list(tracer.listed(value))
            tracer.run_real(operator.setitem, (self.items, tracer.constant_of(key, "slice bounds"), items))
        else:
            index = self._index(tracer, key)
            if not -len(self.items) <= index < len(self.items):
                raise tracer.raised(IndexError, "list assignment index out of range")
            self.items[index] = value
        self.changed(tracer)

    def del_item(self, tracer: Tracer, key: Value) -> None:
        index = tracer.constant_of(key, "index of a list") if isinstance(key, SliceValue) else self._index(tracer, key)
        try:
            del self.items[index]
        except (IndexError, ValueError) as error:
            raise tracer.raised_from(error) from None
        self.changed(tracer)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.cls is not list:
            made: Recipe = NewObject(Constant(self.cls), list.__new__)
            exits.remember(self, made)
            exits.fill(self, made)
            return made
        made = NewList([])
        exits.remember(self, made)
        made.items.extend(exits.recipe(item) for item in self.items)
        return made


# ---- methods of sequences, called explicitly or through super() ----


@list_methods.register("__getitem__")
@tuple_methods.register("__getitem__")
def _sequence_getitem(tracer: Tracer, self: SequenceValue, key: Value) -> Value:
    return self.raw_get_item(tracer, key)


@list_methods.register("__len__")
@tuple_methods.register("__len__")
def _sequence_len(tracer: Tracer, self: SequenceValue) -> Value:
    return ConstantValue(len(self.items))


@list_methods.register("__iter__")
@tuple_methods.register("__iter__")
def _sequence_iter(tracer: Tracer, self: SequenceValue) -> Value:
    return self.forwards(tracer)


@list_methods.register("__contains__")
@tuple_methods.register("__contains__")
def _sequence_contains(tracer: Tracer, self: SequenceValue, item: Value) -> Value:
    return ConstantValue(any(tracer.same(mine, item) or tracer.equal(mine, item) for mine in self.raw_items(tracer)))


@list_methods.register("__setitem__")
def _list_setitem(tracer: Tracer, self: ListValue, key: Value, value: Value) -> Value:
    self.raw_set_item(tracer, key, value)
    return ConstantValue(None)


@list_methods.register("__init__")
def _list_init(tracer: Tracer, self: ListValue, items: Value | None = None) -> Value:
    self.items[:] = [] if items is None else list(tracer.listed(items))
    self.changed(tracer)
    return ConstantValue(None)


# ---- methods of list ----


@list_methods.register("append")
def _append(tracer: Tracer, self: ListValue, item: Value) -> Value:
    self.add(item)
    self.changed(tracer)
    return ConstantValue(None)


@list_methods.register("extend")
def _extend(tracer: Tracer, self: ListValue, more: Value) -> Value:
    self.extend(tracer, more)
    return ConstantValue(None)


@list_methods.register("insert")
def _insert(tracer: Tracer, self: ListValue, index: Value, item: Value) -> Value:
    self.items.insert(tracer.index_of(index), item)
    self.changed(tracer)
    return ConstantValue(None)


@list_methods.register("pop")
def _pop(tracer: Tracer, self: ListValue, index: Value | None = None) -> Value:
    at = tracer.index_of(index) if index is not None else -1
    if not -len(self.items) <= at < len(self.items):
        raise tracer.raised(IndexError, "pop from empty list" if not self.items else "pop index out of range")
    item = self.at(tracer, at)
    del self.items[at]
    self.changed(tracer)
    return item


@list_methods.register("remove")
def _remove(tracer: Tracer, self: ListValue, item: Value) -> Value:
    for at, mine in enumerate(self.raw_items(tracer)):
        if tracer.same(mine, item) or tracer.equal(mine, item):
            del self.items[at]
            self.changed(tracer)
            return ConstantValue(None)
    raise tracer.raised(ValueError, "list.remove(x): x not in list")


@list_methods.register("clear")
def _clear(tracer: Tracer, self: ListValue) -> Value:
    self.items.clear()
    self.changed(tracer)
    return ConstantValue(None)


@list_methods.register("reverse")
def _reverse(tracer: Tracer, self: ListValue) -> Value:
    self.items.reverse()
    self.changed(tracer)
    return ConstantValue(None)


@list_methods.register("copy")
def _copy(tracer: Tracer, self: ListValue) -> Value:
    return ListValue(list(self.items))


@list_methods.register("sort")
def _sort(tracer: Tracer, self: ListValue, key: Value | None = None, reverse: Value | None = None) -> Value:
    before = list(self.raw_items(tracer))
    self.items = []  # as whoever looks meanwhile finds it
    try:
        ordered = tracer.sorted_items(before, key, reverse)
    except Raised:
        self.items = before
        raise
    if self.items:
        raise tracer.raised(ValueError, "list modified during sort")
    self.items = ordered
    self.changed(tracer)
    return ConstantValue(None)


def _from_start(tracer: Tracer, self: SequenceValue, bound: Value) -> int:
    at = tracer.index_of(bound)
    return at if at >= 0 else max(at + len(self.items), 0)


@list_methods.register("index")
@tuple_methods.register("index")
def _index(tracer: Tracer, self: SequenceValue, item: Value, *bounds: Value) -> Value:
    if len(bounds) > 2:
        raise tracer.raised(TypeError, f"index expected at most 3 arguments, got {1 + len(bounds)}")
    start, stop = (*(_from_start(tracer, self, bound) for bound in bounds), *(0, sys.maxsize)[len(bounds) :])
    for at, mine in enumerate(self.iterate(tracer)):
        if start <= at < stop and (tracer.same(mine, item) or tracer.equal(mine, item)):
            return ConstantValue(at)
    text = "tuple.index(x): x not in tuple"
    if self.builtin is not tuple:
        text = f"{tracer.format_value(item, 2, '')} is not in {self.builtin.__name__}"
    raise tracer.raised(ValueError, text)


@list_methods.register("count")
@tuple_methods.register("count")
def _count(tracer: Tracer, self: SequenceValue, item: Value) -> Value:
    return ConstantValue(sum(tracer.same(mine, item) or tracer.equal(mine, item) for mine in self.iterate(tracer)))


@tuple_methods.register("numel")
def _numel(tracer: Tracer, self: SequenceValue) -> Value:
    product = 1
    for item in self.iterate(tracer):
        product *= tracer.constant_of(item, "size")
    return ConstantValue(product)
