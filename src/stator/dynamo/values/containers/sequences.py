"""Lists, tuples, their subclasses and their methods. The items are a Python list of Values. Of lists from outside of
the frame, guards hold only the type while the frame does no more than append."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from inspect import CO_VARARGS
from typing import Any

import torch

from stator.base.errors import UserPlace
from stator.base.registry import Registry
from stator.dynamo.codegen import support
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import ItemSource, LocalSource, Source, length_source
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, NewList, NewTuple, Recipe, call_recipe
from stator.dynamo.values.base import (
    CaptureContext,
    Handler,
    Lazy,
    NotConstant,
    Raised,
    Reconstructor,
    Value,
    unsupported,
)
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import MISSING, ObjectValue, new_of_layout

from .iterators import ContainerIterator, IteratorValue
from .slices import SliceValue

list_methods: Registry[str, Handler] = Registry("list method")
tuple_methods: Registry[str, Handler] = Registry("tuple method")


class SequenceValue(ObjectValue):
    """A list or tuple. `items` may hold Lazy entries; reading an item realizes it."""

    __slots__ = ("items",)
    methods: Registry[str, Handler]
    builtin: type

    def __init__(
        self, items: list[Value], source: Source | None = None, cls: type | None = None, obj: Any = None
    ) -> None:
        super().__init__(self.builtin if cls is None else cls, obj, source)
        self.items = items

    def at(self, context: CaptureContext, index: int) -> Value:
        item = self.items[index]
        if type(item) is Lazy:
            item = self.items[index] = item.realize(context)
        return item

    def truth(self, context: CaptureContext) -> bool:
        return context.override_truth(self, bool(self.items))

    def length(self, context: CaptureContext) -> int:
        if self.cls is not self.builtin and self.special(context, "__len__") is not None:
            return super().length(context)
        return len(self.items)

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        if self.cls is not self.builtin and self.special(context, "__iter__") is not None:
            return super().iterate(context)
        return self.raw_items(context)

    def raw_items(self, context: CaptureContext) -> Iterator[Value]:
        at = 0
        while at < len(self.items):  # the program may change the list meanwhile
            yield self.at(context, at)
            at += 1

    def iterator(self, context: CaptureContext) -> Value:
        if self.cls is not self.builtin and self.special(context, "__iter__") is not None:
            return super().iterator(context)
        return self.forwards(context)

    def forwards(self, context: CaptureContext) -> ContainerIterator:
        kind = type(iter(self.builtin()))
        return ContainerIterator(self, self.raw_items(context), support.iterator_at, kind, made_at=context.end_step())

    def backwards(self, context: CaptureContext) -> IteratorValue:
        places = range(len(self.items) - 1, -1, -1)

        def items() -> Iterator[Value]:
            for at in places:
                if at < len(self.items):
                    yield self.at(context, at)

        return IteratorValue(items(), cls=type(reversed(self.builtin())), made_at=context.end_step())

    def contains(self, context: CaptureContext, item: Value) -> bool:
        if self.cls is not self.builtin and self.special(context, "__contains__") is not None:
            return super().contains(context, item)
        return any(context.same_or_equal(mine, item) for mine in self.raw_items(context))

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        if self.cls is not self.builtin and self.special(context, "__getitem__") is not None:
            return super().get_item(context, key)
        return self.raw_get_item(context, key)

    def raw_get_item(self, context: CaptureContext, key: Value) -> Value:
        if isinstance(key, SliceValue):
            bounds = context.constant_of(key, "slice bounds")
            part = context.run_real(operator.getitem, (self.items, bounds))
            if self.cls is tuple and bounds.indices(len(self.items)) == (0, len(self.items), 1):
                return self  # CPython returns the tuple itself
            return self.rebuilt(part)
        index = self._index(context, key)
        if not -len(self.items) <= index < len(self.items):
            raise context.raised(IndexError, f"{self.builtin.__name__} index out of range")
        return self.at(context, index)

    def _index(self, context: CaptureContext, key: Value) -> int:
        if context.class_lookup(key.python_type(context), "__index__") is MISSING:
            raise unsupported("subscript", f"{key.describe(context)} as an index")
        return context.index_of(key)

    def rebuilt(self, items: list[Value]) -> Value:
        """A plain container of this kind with these items."""
        return type(self)(items)

    def builtin_method(self, context: CaptureContext, name: str) -> Handler | None:
        found = self.methods.get(name)
        return found or super().builtin_method(context, name)


class TupleValue(SequenceValue):
    """A tuple; `cls` may be a named tuple class or torch.Size."""

    __slots__ = ()
    builtin: type = tuple
    methods = tuple_methods

    def constant(self) -> Any:
        items = tuple(item.constant() for item in self.items)
        if self.cls is tuple:
            return items
        if self.attributes:
            raise NotConstant
        if self.obj is not None:  # nobody can make another sys.version_info
            return self.obj
        if new_of_layout(self.cls) is not tuple.__new__:  # torch.Size and the struct sequences of C
            return self.cls(items)
        return tuple.__new__(self.cls, items)

    def rebuilt(self, items: list[Value]) -> Value:
        """Slices, sums and repetitions of a torch.Size are torch.Size; those of other subclasses are plain tuples."""
        return TupleValue(items, cls=torch.Size if self.cls is torch.Size else tuple)

    def slot(self, context: CaptureContext, name: str, descriptor: Any) -> Value:
        """A field of a C struct sequence, such as torch.return_types.max."""
        fields = getattr(self.cls, "__match_args__", ())
        return self.at(context, fields.index(name)) if name in fields else super().slot(context, name, descriptor)

    def key(self, context: CaptureContext) -> Any:
        return tuple(context.realized(item).key(context) for item in self.items)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None and self.obj is not None:
            return Load(self.source)
        made = NewTuple([reconstructor.recipe(item) for item in self.items])
        if self.cls is tuple:
            return made
        if new_of_layout(self.cls) is not tuple.__new__:  # torch.Size and the struct sequences of C
            return call_recipe(self.cls, made)
        return reconstructor.made_of_class(self, call_recipe(tuple.__new__, ConstantRecipe(self.cls), made))


class ListValue(SequenceValue):
    """A list."""

    __slots__ = ()
    builtin: type = list
    methods = list_methods

    def constant(self) -> list[Any]:
        if self.cls is not list:
            raise NotConstant
        return [item.constant() for item in self.items]

    def key(self, context: CaptureContext) -> Any:
        raise context.raised(TypeError, "unhashable type: 'list'")

    def changed(self, context: CaptureContext) -> None:
        context.mutations.content(self)

    def add(self, *items: Value) -> None:
        """Append items."""
        self.items.extend(items)

    def extend(self, context: CaptureContext, more: Value) -> None:
        """Append the items of `more` one by one: a generator may read the list meanwhile, and items from before an
        exception stay."""
        self.changed(context)
        if isinstance(more, SequenceValue):  # `more` may be this list
            self.add(*context.iterate(more))
        else:
            for item in context.listed(more):
                self.add(item)

    def set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        if self.cls is not self.builtin and self.special(context, "__setitem__") is not None:
            super().set_item(context, key, value)
        else:
            self.raw_set_item(context, key, value)

    def raw_set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        if isinstance(key, SliceValue):
            items = list(context.listed(value))
            context.run_real(operator.setitem, (self.items, context.constant_of(key, "slice bounds"), items))
        else:
            index = self._index(context, key)
            if not -len(self.items) <= index < len(self.items):
                raise context.raised(IndexError, "list assignment index out of range")
            self.items[index] = value
        self.changed(context)

    def del_item(self, context: CaptureContext, key: Value) -> None:
        index = (
            context.constant_of(key, "index of a list") if isinstance(key, SliceValue) else self._index(context, key)
        )
        try:
            del self.items[index]
        except (IndexError, ValueError) as error:
            raise context.raised_from(error) from None
        self.changed(context)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.cls is not list:
            made: Recipe = call_recipe(list.__new__, ConstantRecipe(self.cls))
            reconstructor.remember(self, made)
            reconstructor.fill(self, made)
            return made
        made = NewList([])
        reconstructor.remember(self, made)
        made.items.extend(reconstructor.recipe(item) for item in self.items)
        return made


# ---- methods of sequences, which programs also call through super() ----


@list_methods.register("__setitem__")
def _list_setitem(context: CaptureContext, self: ListValue, key: Value, value: Value) -> None:
    self.raw_set_item(context, key, value)


@list_methods.register("__init__")
def _list_init(context: CaptureContext, self: ListValue, items: Value | None = None) -> None:
    self.items[:] = [] if items is None else list(context.listed(items))
    self.changed(context)


# ---- methods of list ----


@list_methods.register("append")
def _append(context: CaptureContext, self: ListValue, item: Value) -> None:
    self.add(item)
    self.changed(context)


@list_methods.register("extend")
def _extend(context: CaptureContext, self: ListValue, more: Value) -> None:
    self.extend(context, more)


@list_methods.register("insert")
def _insert(context: CaptureContext, self: ListValue, index: Value, item: Value) -> None:
    self.items.insert(context.index_of(index), item)
    self.changed(context)


@list_methods.register("pop")
def _pop(context: CaptureContext, self: ListValue, index: Value | None = None) -> Value:
    at = context.index_of(index) if index is not None else -1
    if not -len(self.items) <= at < len(self.items):
        raise context.raised(IndexError, "pop from empty list" if not self.items else "pop index out of range")
    item = self.at(context, at)
    del self.items[at]
    self.changed(context)
    return item


@list_methods.register("remove")
def _remove(context: CaptureContext, self: ListValue, item: Value) -> Value:
    for at, mine in enumerate(self.raw_items(context)):
        if context.same_or_equal(mine, item):
            del self.items[at]
            self.changed(context)
            return ConstantValue(None)
    raise context.raised(ValueError, "list.remove(x): x not in list")


@list_methods.register("clear")
def _clear(context: CaptureContext, self: ListValue) -> None:
    self.items.clear()
    self.changed(context)


@list_methods.register("reverse")
def _reverse(context: CaptureContext, self: ListValue) -> None:
    self.items.reverse()
    self.changed(context)


@list_methods.register("sort")
def _sort(context: CaptureContext, self: ListValue, key: Value | None = None, reverse: Value | None = None) -> None:
    before = list(self.raw_items(context))
    self.items = []  # CPython shows an empty list during the sort
    try:
        ordered = context.sorted_items(before, key, reverse)
    except Raised:
        self.items = before
        raise
    if self.items:
        raise context.raised(ValueError, "list modified during sort")
    self.items = ordered
    self.changed(context)


def _from_start(context: CaptureContext, self: SequenceValue, bound: Value) -> int:
    at = context.index_of(bound)
    return at if at >= 0 else max(at + len(self.items), 0)


@list_methods.register("index")
@tuple_methods.register("index")
def _index(context: CaptureContext, self: SequenceValue, item: Value, *bounds: Value) -> Value:
    if len(bounds) > 2:
        raise context.raised(TypeError, f"index expected at most 3 arguments, got {1 + len(bounds)}")
    start, stop = (*(_from_start(context, self, bound) for bound in bounds), *(0, sys.maxsize)[len(bounds) :])
    for at, mine in enumerate(self.iterate(context)):
        if start <= at < stop and context.same_or_equal(mine, item):
            return ConstantValue(at)
    text = "tuple.index(x): x not in tuple"
    if self.builtin is not tuple:
        text = f"{context.format_value(item, 2, '')} is not in {self.builtin.__name__}"
    raise context.raised(ValueError, text)


@tuple_methods.register("numel")
def _numel(context: CaptureContext, self: SequenceValue) -> Value:
    product: Value = ConstantValue(1)
    for item in self.iterate(context):
        product = context.binary(operator.mul, product, item)
    return product


OFTEN = 2  # changes of the length after which no guard may hold it


def changes_length(context: CaptureContext, source: Source) -> bool:
    """Whether the length of the container at `source` changes so often that no guard may hold it."""
    return source in context.varying or context.changing.get(length_source(source), 0) >= OFTEN


def _varying_length(value: SequenceValue) -> Exception:
    what = f"the items of {value.source}, a {value.builtin.__name__} whose length changes from call to call"
    return unsupported("varying-length", what)


class VaryingTuple(TupleValue):
    """A tuple found at `source`, whose length no guard may hold: the graph ends where capture needs `items`."""

    __slots__ = ()

    def __init__(self, obj: tuple[Any, ...], source: Source) -> None:
        ObjectValue.__init__(self, tuple, obj, source)

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        raise _varying_length(self)

    def rebuilt(self, items: list[Value]) -> Value:
        return TupleValue(items)


def found_tuple(context: CaptureContext, obj: tuple[Any, ...], source: Source) -> TupleValue:
    """A tuple found at `source`."""
    if type(obj) is tuple and changes_length(context, source) and not _is_star_args(context, source):
        return VaryingTuple(obj, source)
    context.guard(source, GuardKind.LENGTH, tuple.__len__(obj))
    items: list[Value] = [Lazy(item, ItemSource(source, at)) for at, item in enumerate(tuple.__iter__(obj))]
    return TupleValue(items, source, type(obj), obj)


def _is_star_args(context: CaptureContext, source: Source) -> bool:
    """Whether this is the tuple of `*args`: each number of arguments is a call of its own."""
    code = context.function.__code__
    first = code.co_argcount + code.co_kwonlyargcount
    return bool(code.co_flags & CO_VARARGS) and source == LocalSource(code.co_varnames[first])


class AppendOnlyList(ListValue):
    """A list found at `source`. Appended values stay apart, and no guard holds the length, until capture needs `items`.

    So one compiled version serves all turns of a loop that breaks the graph and appends to the list.
    """

    __slots__ = ("appended", "context", "known_items", "met_at")

    def __init__(self, context: CaptureContext, obj: list[Any], source: Source) -> None:
        self.context = context
        self.met_at: UserPlace = context.place()
        self.appended: list[Value] = []
        self.known_items: list[Value] | None = None
        ObjectValue.__init__(self, type(obj), obj, source)

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        if self.known_items is None:
            self._read()
        return self.known_items  # type: ignore[return-value]

    @items.setter
    def items(self, items: list[Value]) -> None:
        self.known_items = items

    def _read(self) -> None:
        source: Source = self.source  # type: ignore[assignment]
        if changes_length(self.context, source):
            raise _varying_length(self)
        length = list.__len__(self.obj)
        self.context.guards.made.append(Guard(source, GuardKind.LENGTH, length, self.met_at))
        self.known_items = [Lazy(item, ItemSource(source, at)) for at, item in enumerate(list.__iter__(self.obj))]
        self.known_items += self.appended

    @property
    def only_appended(self) -> bool:
        return self.known_items is None

    def rebuilt(self, items: list[Value]) -> Value:
        return ListValue(items)

    def add(self, *items: Value) -> None:
        (self.appended if self.known_items is None else self.known_items).extend(items)


for _methods in (list_methods, tuple_methods):
    _methods.add_all(
        {
            "__getitem__": lambda context, self, key: self.raw_get_item(context, key),
            "__len__": lambda context, self: ConstantValue(len(self.items)),
            "__iter__": lambda context, self: self.forwards(context),
            "__contains__": lambda context, self, item: ConstantValue(
                any(context.same_or_equal(mine, item) for mine in self.raw_items(context))
            ),
            "count": lambda context, self, item: ConstantValue(
                sum(context.same_or_equal(mine, item) for mine in self.iterate(context))
            ),
        }
    )
list_methods.add_all({"copy": lambda context, self: ListValue(list(self.items))})
