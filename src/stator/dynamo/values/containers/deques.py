"""collections.deque. Of deques from outside of the frame, guards hold the items once capture reads one; changes are
replayed as the calls of methods that the program made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from stator.base.registry import Registry
from stator.dynamo.codegen import support
from stator.dynamo.guards.source import CallSource, Source
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, NewList, Recipe, call_effect, call_recipe
from stator.dynamo.values.base import CaptureContext, Handler, Lazy, Reconstructor, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import ObjectValue

from .iterators import ContainerIterator, IteratorValue
from .sequences import found_tuple

_methods: Registry[str, Handler] = Registry("deque method")


class DequeValue(ObjectValue):
    __slots__ = ("added", "changes", "known_items", "maxlen", "state")

    def __init__(self, maxlen: int | None = None, obj: deque[Any] | None = None, source: Source | None = None) -> None:
        super().__init__(deque, obj, source)
        self.maxlen = maxlen
        self.state = 0  # counts changes of the length, after which an iterator fails
        self.changes: list[tuple[str, tuple[Value, ...]]] = []  # to replay: methods of a deque from outside
        self.added: list[Value] = []  # at the end, while the items from outside are not read
        self.known_items: list[Value] | None = [] if source is None else None

    def read(self, context: CaptureContext) -> list[Value]:
        """The items. Some may be Lazy; reading one realizes it."""
        if self.known_items is None:
            contents = CallSource(tuple, (self.source,))  # type: ignore[arg-type]
            found = found_tuple(context, tuple(self.obj), contents)
            self.known_items = self._last([*found.items, *self.added])
        return self.known_items

    def _last(self, items: list[Value]) -> list[Value]:
        return items if self.maxlen is None else items[max(len(items) - self.maxlen, 0) :]

    def at(self, context: CaptureContext, index: int) -> Value:
        items = self.read(context)
        if type(items[index]) is Lazy:
            items[index] = context.realized(items[index])
        return items[index]

    def changed(self, context: CaptureContext, method: str, *args: Value) -> None:
        if method != "__setitem__":
            self.state += 1
        context.mutations.content(self)
        if self.source is not None:
            self.changes.append((method, args))

    def add(self, context: CaptureContext, item: Value) -> None:
        """Append an item."""
        if self.known_items is None:
            self.added.append(item)
        else:
            self.known_items[:] = self._last([*self.known_items, item])
        self.changed(context, "append", item)

    def index(self, context: CaptureContext, key: Value) -> int:
        if not issubclass(key.python_type(context), int):
            raise unsupported("subscript", f"{key.describe(context)} as an index of a deque")
        length, at = len(self.read(context)), context.index_of(key)
        if not -length <= at < length:
            raise context.raised(IndexError, "deque index out of range")
        return at

    # -- operations --
    def truth(self, context: CaptureContext) -> bool:
        return self.length(context) > 0

    def length(self, context: CaptureContext) -> int:
        return len(self.read(context))

    def contains(self, context: CaptureContext, item: Value) -> bool:
        return any(context.same_or_equal(mine, item) for mine in self.items(context))

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        return self.at(context, self.index(context, key))

    def set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        self.read(context)[self.index(context, key)] = value
        self.changed(context, "__setitem__", key, value)

    def del_item(self, context: CaptureContext, key: Value) -> None:
        del self.read(context)[self.index(context, key)]
        self.changed(context, "__delitem__", key)

    def items(self, context: CaptureContext, backwards: bool = False) -> Iterator[Value]:
        """The items one by one; as CPython's iterator, it fails if the length changed meanwhile."""
        state, length = self.state, len(self.read(context))
        for at in range(length + 1):
            if state != self.state:
                raise context.raised(RuntimeError, "deque mutated during iteration")
            if at < length:
                yield self.at(context, -1 - at if backwards else at)

    def iterator(self, context: CaptureContext) -> Value:
        kind: type = type(iter(deque[Any]()))
        return ContainerIterator(self, self.items(context), support.iterator_at, kind, made_at=context.end_step())

    def slot(self, context: CaptureContext, name: str, descriptor: Any) -> Value:
        return ConstantValue(self.maxlen) if name == "maxlen" else super().slot(context, name, descriptor)

    def builtin_method(self, context: CaptureContext, name: str) -> Handler | None:
        return _methods.get(name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        made = call_recipe(deque, NewList([]), ConstantRecipe(self.maxlen))
        reconstructor.remember(self, made)
        reconstructor.fill(self, made)
        return made


def new_deque(context: CaptureContext, items: Value | None = None, maxlen: Value | None = None) -> DequeValue:
    bound = None if maxlen is None else context.constant_of(maxlen, "the maximum length of a deque")
    if bound is not None and (type(bound) is not int or bound < 0):
        raise unsupported("call-builtin", f"a deque of at most {bound!r} items")
    made = DequeValue(bound)
    _extend(context, made, *([] if items is None else [items]))
    return made


def _several(context: CaptureContext, self: DequeValue, items: Value) -> Iterable[Value]:
    return list(self.items(context)) if items is self else context.iterate(items)


@_methods.register("append")
def _append(context: CaptureContext, self: DequeValue, item: Value) -> None:
    self.add(context, item)


@_methods.register("extend")
def _extend(context: CaptureContext, self: DequeValue, *more: Value) -> Value:
    for items in more:
        for item in _several(context, self, items):
            self.add(context, item)
    return ConstantValue(None)


@_methods.register("appendleft")
def _appendleft(context: CaptureContext, self: DequeValue, item: Value) -> Value:
    items = self.read(context)
    items[:] = [item, *items][: self.maxlen]
    self.changed(context, "appendleft", item)
    return ConstantValue(None)


@_methods.register("extendleft")
def _extendleft(context: CaptureContext, self: DequeValue, more: Value) -> None:
    for item in _several(context, self, more):
        _appendleft(context, self, item)


@_methods.register("insert")
def _insert(context: CaptureContext, self: DequeValue, index: Value, item: Value) -> None:
    items = self.read(context)
    if len(items) == self.maxlen:
        raise context.raised(IndexError, "deque already at its maximum size")
    items.insert(context.index_of(index), item)
    self.changed(context, "insert", index, item)


def _take(context: CaptureContext, self: DequeValue, method: str, at: int) -> Value:
    if not self.read(context):
        raise context.raised(IndexError, "pop from an empty deque")
    item = self.at(context, at)
    del self.read(context)[at]
    self.changed(context, method)
    return item


@_methods.register("pop")
def _pop(context: CaptureContext, self: DequeValue) -> Value:
    return _take(context, self, "pop", -1)


@_methods.register("popleft")
def _popleft(context: CaptureContext, self: DequeValue) -> Value:
    return _take(context, self, "popleft", 0)


@_methods.register("clear")
def _clear(context: CaptureContext, self: DequeValue) -> None:
    self.read(context).clear()
    self.changed(context, "clear")


@_methods.register("reverse")
def _reverse(context: CaptureContext, self: DequeValue) -> None:
    self.read(context).reverse()
    self.changed(context, "reverse")


@_methods.register("rotate")
def _rotate(context: CaptureContext, self: DequeValue, steps: Value | None = None) -> None:
    items, by = self.read(context), 1 if steps is None else context.index_of(steps)
    at = -by % len(items) if items else 0
    items[:] = items[at:] + items[:at]
    self.changed(context, "rotate", ConstantValue(by))


@_methods.register("remove")
def _remove(context: CaptureContext, self: DequeValue, item: Value) -> Value:
    for at in range(self.length(context)):
        state = self.state
        if context.same_or_equal(self.at(context, at), item):
            self.del_item(context, ConstantValue(at))
            return ConstantValue(None)
        if state != self.state:
            raise context.raised(IndexError, "deque mutated during remove().")
    raise unsupported("raise", "deque.remove of an item that is missing")


@_methods.register("count")
def _count(context: CaptureContext, self: DequeValue, item: Value) -> Value:
    return ConstantValue(sum(context.same_or_equal(mine, item) for mine in self.items(context)))


@_methods.register("copy")
@_methods.register("__copy__")
def _copy(context: CaptureContext, self: DequeValue) -> Value:
    made = DequeValue(self.maxlen)
    made.known_items = list(self.read(context))
    return made


@_methods.register("__reversed__")
def _reversed(context: CaptureContext, self: DequeValue) -> Value:
    return IteratorValue(self.items(context, backwards=True), False, type(reversed(deque[Any]())), context.end_step())


def replayed(self: DequeValue, target: Recipe, reconstructor: Reconstructor) -> Iterator[Any]:
    """The effects that change a deque from outside."""
    for method, args in self.changes:
        yield call_effect(getattr(deque, method), target, *map(reconstructor.recipe, args))
