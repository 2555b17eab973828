"""collections.deque and its methods, with and without a maximal length."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stator.base.registry import Registry
from stator.dynamo.codegen import support
from stator.dynamo.guards.source import Source
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, NewList, Recipe
from stator.dynamo.values.base import NotConstant, Raised, Value, unsupported
from stator.dynamo.values.constants import ConstantValue

from .sequences import ListValue, Method, list_methods
from .slices import SliceValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor

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

    def changed(self, context: CaptureContext) -> None:
        self.changes += 1
        super().changed(context)

    def trim(self, *, left: bool) -> None:
        """Let go of what is too much, at one end."""
        if self.maxlen is not None and len(self.items) > self.maxlen:
            too_many = len(self.items) - self.maxlen
            del self.items[slice(too_many) if left else slice(self.maxlen, None)]

    def reversed_at(self, start: int) -> Callable[[Any, int], Any]:
        return support.deque_reversed_at

    def raw_items(self, context: CaptureContext) -> Iterator[Value]:
        return self._while_unchanged(context, super().raw_items(context), self.changes)

    def _while_unchanged(self, context: CaptureContext, items: Iterator[Value], changes: int) -> Iterator[Value]:
        while True:
            if self.changes != changes:
                raise context.raised(RuntimeError, "deque mutated during iteration")
            item = next(items, None)
            if item is None:
                return
            yield item

    def raw_get_item(self, context: CaptureContext, key: Value) -> Value:
        if isinstance(key, SliceValue):
            raise context.raised(TypeError, "sequence index must be integer, not 'slice'")
        return super().raw_get_item(context, key)

    def raw_set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        if isinstance(key, SliceValue):
            raise context.raised(TypeError, "sequence index must be integer, not 'slice'")
        super().raw_set_item(context, key, value)
        self.changes -= 1  # iterators go on over other items in the places of the old ones

    def slot(self, context: CaptureContext, name: str, descriptor: Any) -> Value:
        return ConstantValue(self.maxlen) if name == "maxlen" else super().slot(context, name, descriptor)

    def rebuilt(self, items: list[Value]) -> Value:
        return DequeValue(items, cls=deque, maxlen=self.maxlen)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.cls is not deque:
            raise unsupported("reconstruct", "an instance of a subclass of deque")
        items = NewList([reconstructor.recipe(item) for item in self.items])
        return CallRecipe(ConstantRecipe(deque), [items, ConstantRecipe(self.maxlen)])


@deque_methods.register("append")
def _append(context: CaptureContext, self: DequeValue, item: Value) -> Value:
    self.items.append(item)
    self.trim(left=True)
    self.changed(context)
    return ConstantValue(None)


@deque_methods.register("appendleft")
def _appendleft(context: CaptureContext, self: DequeValue, item: Value) -> Value:
    self.items.insert(0, item)
    self.trim(left=False)
    self.changed(context)
    return ConstantValue(None)


@deque_methods.register("extend", "__iadd__")
def _extend(context: CaptureContext, self: DequeValue, more: Value) -> Value:
    for item in list(self.items) if more is self else context.iterate(more):
        _append(context, self, context.realized(item))
    return ConstantValue(None)


def _taken(context: CaptureContext, self: DequeValue, at: int) -> Value:
    if not self.items:
        raise context.raised(IndexError, "pop from an empty deque")
    item = self.at(context, at)
    del self.items[at]
    self.changed(context)
    return item


@deque_methods.register("pop")
def _pop(context: CaptureContext, self: DequeValue) -> Value:
    return _taken(context, self, -1)


@deque_methods.register("popleft")
def _popleft(context: CaptureContext, self: DequeValue) -> Value:
    return _taken(context, self, 0)


@deque_methods.register("index")
def _index(
    context: CaptureContext, self: DequeValue, item: Value, start: Value | None = None, stop: Value | None = None
) -> Value:
    bounds = slice(*(None if bound is None else context.index_of(bound) for bound in (start, stop)))
    between = range(*bounds.indices(len(self.items)))
    for at, mine in enumerate(self.raw_items(context)):
        if at in between and (context.same(mine, item) or context.equal(mine, item)):
            return ConstantValue(at)
    raise _not_found(context, deque.index, item)


def _not_found(context: CaptureContext, method: Callable[..., Any], item: Value) -> Raised:
    """The error of an item that is not there, in this version's words."""
    try:
        method(deque(), context.constant_of(item, "an item that is not in a deque"))
    except ValueError as error:
        return context.raised_from(error)
    raise unsupported("contains", "an item that is not in a deque")
