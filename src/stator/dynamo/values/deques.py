"""collections.deque and its methods, with and without a maximal length."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stator.base.registry import Registry

from ..emit import support
from ..recipe import CallRecipe, Constant, Load, NewList, Recipe
from ..source import Source
from .base import NotConstant, Raised, Value, unsupported
from .constants import ConstantValue
from .sequences import ListValue, Method, list_methods
from .slices import SliceValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

deque_methods: Registry[str, Method] = Registry("deque method")
_AS_LISTS = ("__getitem__", "__len__", "__iter__", "__contains__", "__setitem__", "reverse", "clear", "count")
for _name in _AS_LISTS:
    deque_methods.add(_name, list_methods[_name])


class DequeValue(ListValue):
    """A collections.deque."""

    __slots__ = ("changes", "maxlen")
    builtin: type = deque
    methods = deque_methods
    iterator_at = staticmethod(support.deque_iterator_at)

    def __init__(
        self,
        items: list[Value],
        source: Source | None = None,
        cls: type | None = None,
        obj: Any = None,
        maxlen: int | None = None,
    ) -> None:
        super().__init__(items if maxlen is None else items[len(items) - min(maxlen, len(items)) :], source, cls, obj)
        self.maxlen = maxlen
        self.changes = 0

    def constant(self) -> Any:
        raise NotConstant

    def changed(self, tracer: Tracer) -> None:
        self.changes += 1
        super().changed(tracer)

    def trim(self, *, left: bool) -> None:
        """Let go of what is too much, at one end."""
        if self.maxlen is not None and len(self.items) > self.maxlen:
            too_many = len(self.items) - self.maxlen
            del self.items[slice(too_many) if left else slice(self.maxlen, None)]

    def reversed_at(self, start: int) -> Callable[[Any, int], Any]:
        return support.deque_reversed_at

    def raw_items(self, tracer: Tracer) -> Iterator[Value]:
        return self._while_unchanged(tracer, super().raw_items(tracer), self.changes)

    def _while_unchanged(self, tracer: Tracer, items: Iterator[Value], changes: int) -> Iterator[Value]:
        while True:
            if self.changes != changes:
                raise tracer.raised(RuntimeError, "deque mutated during iteration")
            item = next(items, None)
            if item is None:
                return
            yield item

    def raw_get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(key, SliceValue):
            raise tracer.raised(TypeError, "sequence index must be integer, not 'slice'")
        return super().raw_get_item(tracer, key)

    def raw_set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if isinstance(key, SliceValue):
            raise tracer.raised(TypeError, "sequence index must be integer, not 'slice'")
        super().raw_set_item(tracer, key, value)
        self.changes -= 1  # iterators go on over other items in the places of the old ones

    def slot(self, tracer: Tracer, name: str, descriptor: Any) -> Value:
        return ConstantValue(self.maxlen) if name == "maxlen" else super().slot(tracer, name, descriptor)

    def rebuilt(self, items: list[Value]) -> Value:
        return DequeValue(items, cls=deque, maxlen=self.maxlen)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.cls is not deque:
            raise unsupported("reconstruct", "an instance of a subclass of deque")
        items = NewList([exits.recipe(item) for item in self.items])
        return CallRecipe(Constant(deque), [items, Constant(self.maxlen)])


def _is_full(self: DequeValue) -> bool:
    return self.maxlen is not None and len(self.items) >= self.maxlen


@deque_methods.register("append")
def _append(tracer: Tracer, self: DequeValue, item: Value) -> Value:
    self.items.append(item)
    self.trim(left=True)
    self.changed(tracer)
    return ConstantValue(None)


@deque_methods.register("appendleft")
def _appendleft(tracer: Tracer, self: DequeValue, item: Value) -> Value:
    self.items.insert(0, item)
    self.trim(left=False)
    self.changed(tracer)
    return ConstantValue(None)


@deque_methods.register("extend", "__iadd__")
def _extend(tracer: Tracer, self: DequeValue, more: Value) -> Value:
    for item in list(self.items) if more is self else tracer.iterate(more):
        _append(tracer, self, tracer.realized(item))
    return ConstantValue(None)


@deque_methods.register("extendleft")
def _extendleft(tracer: Tracer, self: DequeValue, more: Value) -> Value:
    for item in list(self.items) if more is self else tracer.iterate(more):
        _appendleft(tracer, self, tracer.realized(item))
    return ConstantValue(None)


def _taken(tracer: Tracer, self: DequeValue, at: int) -> Value:
    if not self.items:
        raise tracer.raised(IndexError, "pop from an empty deque")
    item = self.at(tracer, at)
    del self.items[at]
    self.changed(tracer)
    return item


@deque_methods.register("pop")
def _pop(tracer: Tracer, self: DequeValue) -> Value:
    return _taken(tracer, self, -1)


@deque_methods.register("popleft")
def _popleft(tracer: Tracer, self: DequeValue) -> Value:
    return _taken(tracer, self, 0)


@deque_methods.register("insert")
def _insert(tracer: Tracer, self: DequeValue, index: Value, item: Value) -> Value:
    at = tracer.index_of(index)
    if _is_full(self):
        raise tracer.raised(IndexError, "deque already at its maximum size")
    self.items.insert(at, item)
    self.changed(tracer)
    return ConstantValue(None)


@deque_methods.register("remove")
def _remove(tracer: Tracer, self: DequeValue, item: Value) -> Value:
    changes = self.changes
    for at in range(len(self.items)):
        mine = self.at(tracer, at)
        found = tracer.same(mine, item) or tracer.equal(mine, item)
        if self.changes != changes:
            raise tracer.raised(IndexError, "deque mutated during remove().")
        if found:
            del self.items[at]
            self.changed(tracer)
            return ConstantValue(None)
    raise _not_found(tracer, deque.remove, item)


@deque_methods.register("index")
def _index(
    tracer: Tracer, self: DequeValue, item: Value, start: Value | None = None, stop: Value | None = None
) -> Value:
    bounds = slice(*(None if bound is None else tracer.index_of(bound) for bound in (start, stop)))
    between = range(*bounds.indices(len(self.items)))
    for at, mine in enumerate(self.raw_items(tracer)):
        if at in between and (tracer.same(mine, item) or tracer.equal(mine, item)):
            return ConstantValue(at)
    raise _not_found(tracer, deque.index, item)


def _not_found(tracer: Tracer, method: Callable[..., Any], item: Value) -> Raised:
    """The error of an item that is not there, in this version's words."""
    try:
        method(deque(), tracer.constant_of(item, "an item that is not in a deque"))
    except ValueError as error:
        return tracer.raised_from(error)
    raise unsupported("contains", "an item that is not in a deque")


@deque_methods.register("rotate")
def _rotate(tracer: Tracer, self: DequeValue, steps: Value | None = None) -> Value:
    by = tracer.index_of(steps) if steps is not None else 1
    if self.items:
        by %= len(self.items)
        self.items[:] = self.items[len(self.items) - by :] + self.items[: len(self.items) - by]
    self.changed(tracer)
    return ConstantValue(None)


@deque_methods.register("copy", "__copy__")
def _copy(tracer: Tracer, self: DequeValue) -> Value:
    if self.cls is not deque:
        raise unsupported("copy", f"copying {self.describe(tracer)}")
    return self.rebuilt(list(self.items))
