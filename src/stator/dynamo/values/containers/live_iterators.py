"""Iterators from outside of the frame, such as the iterator of a loop whose body breaks the graph.

Capture reads the next items without advancing the iterator, which advances when the graph ends, ahead of all other
effects. So one compiled version can run from the middle of a loop's body to the same place in the next turn.
"""

from __future__ import annotations

import operator
from typing import Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, ReadSource, Source
from stator.dynamo.host import iterator_state
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Effect, Load, Recipe, call_effect
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value, unsupported

from .iterators import IteratorValue
from .sequences import OFTEN


class LiveIterator(IteratorValue):
    """A built-in iterator over a list, tuple, range, dictionary, set or string, found at `source`.

    position: the number of items that captured code has taken. steps: the number of calls of next() on this iterator
    itself, not through an enumerate() or zip() around it; the last call may have met the end.
    """

    __slots__ = ("apart_from", "at_end", "obj", "position", "steps")

    def __init__(self, obj: Any, source: Source) -> None:
        super().__init__(iter(()), cls=type(obj))
        self.source = source
        self.obj = obj
        self.position = self.steps = 0
        self.at_end = False
        self.apart_from: set[int] = set()  # ids of changed values which guards distinguish from the container

    def real(self) -> Any:
        return self.obj

    def next_item(self, context: CaptureContext) -> Value | None:
        self.steps += 1
        context.mutations.iterator(self)
        return self.take(context)

    def take(self, context: CaptureContext) -> Value | None:
        """The next item, or None at the end. The caller advances the real iterator."""
        self._check_unchanged(context)
        context.live_iterators[id(self)] = self
        if not iterator_state.has_upcoming(self.obj, self.position):
            self.at_end = True
            return None
        item = iterator_state.upcoming(self.obj, self.position)
        source = self.read(iterator_state.upcoming, self.position)
        self.position += 1
        if type(self.obj) in iterator_state.OVER_RANGES:
            context.guards.presence_known(source)
        return context.wrap(item, source)

    def pass_item(self, context: CaptureContext) -> None:
        """Take the next item, which is there and whose value the caller knows."""
        self.steps += 1
        self.position += 1
        context.mutations.iterator(self)
        context.live_iterators[id(self)] = self

    def _check_unchanged(self, context: CaptureContext) -> None:
        """The next items come from the real container: captured code must not have changed it, and guards hold that no
        changed object is the container in another call."""
        container = iterator_state.iterated_container(self.obj)
        if container is None:
            return
        for kind, changed, _ in context.mutations.entries.values():
            if kind == "content":
                real, source = changed.obj, changed.source
            elif kind == "attribute":
                real, source = changed.instance_dict(), changed.dict_source
            else:
                continue
            if real is container:
                raise unsupported("iteration", "going on over a container that was changed meanwhile")
            if source is not None and _of_one_kind(real, container) and id(changed) not in self.apart_from:
                self.apart_from.add(id(changed))
                mine = ReadSource(iterator_state.iterated_container, (self.source,))  # type: ignore[arg-type]
                context.guard(source, GuardKind.DISTINCT, mine)

    def read(self, function: Any, index: int) -> ReadSource:
        return ReadSource(function, (self.source, ConstantSource(repr(index), index)))  # type: ignore[arg-type]

    def rely_on_items(self, context: CaptureContext) -> None:
        """Guard that the taken items exist, and that the end is the end."""
        if self.position:
            context.guard(self.read(iterator_state.has_upcoming, self.position - 1), GuardKind.EQUALS, True)
        if self.at_end:
            context.guard(self.read(iterator_state.has_upcoming, self.position), GuardKind.EQUALS, False)

    def advance(self) -> Effect:
        source: Source = self.source  # type: ignore[assignment]
        if self.steps == 1:
            return call_effect(next, Load(source), ConstantRecipe(None))
        return call_effect(iterator_state.advance, Load(source), ConstantRecipe(self.steps))

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return Load(self.source)  # type: ignore[arg-type]


def _of_one_kind(one: Any, other: Any) -> bool:
    return any(isinstance(one, kind) and isinstance(other, kind) for kind in (list, dict, set))


class LiveEnumerate(LiveIterator):
    """enumerate() around a live iterator."""

    __slots__ = ("count", "iterated")

    def __init__(self, obj: Any, source: Source, iterated: LiveIterator, count: Value) -> None:
        super().__init__(obj, source)
        self.iterated, self.count = iterated, count

    def take(self, context: CaptureContext) -> Value | None:
        item = self.iterated.take(context)
        if item is None:
            return None
        count = self.count
        if self.position:
            count = context.binary(operator.add, count, context.constant(self.position))
        self.position += 1
        return context.tuple_of([count, item])

    def rely_on_items(self, context: CaptureContext) -> None:
        """The inner iterator does."""


class LiveZip(LiveIterator):
    """zip() of live iterators."""

    __slots__ = ("iterated", "strict")

    def __init__(self, obj: Any, source: Source, iterated: list[LiveIterator], strict: bool) -> None:
        super().__init__(obj, source)
        self.iterated, self.strict = iterated, strict

    def take(self, context: CaptureContext) -> Value | None:
        row: list[Value] = []
        for iterator in self.iterated:
            item = iterator.take(context)
            if item is None:
                if self.strict and (row or any(other.take(context) is not None for other in self.iterated[1:])):
                    raise unsupported("iteration", "zip(strict=True) of iterables that end one after another")
                return None
            row.append(item)
        return context.tuple_of(row)

    def rely_on_items(self, context: CaptureContext) -> None:
        """The inner iterators do."""


class VaryingZip(LiveIterator):
    """zip() of live iterators whose number changes from call to call, as in `zip(*rows)`: the interpreter takes the
    items."""

    __slots__ = ()

    def next_item(self, context: CaptureContext) -> Value | None:
        what = f"the items of {self.source}, a zip() of iterators whose number changes from call to call"
        raise unsupported("varying-length", what)

    take = next_item


def live_iterator(context: CaptureContext, obj: Any, source: Source) -> LiveIterator | None:
    """The value of an iterator found at `source`; None if its next items cannot be read without advancing it."""
    kind = type(obj)
    if kind not in iterator_state.READABLE or not iterator_state.is_readable(obj):
        return None  # a subclass, or an iterator over a dictionary that changed meanwhile
    if kind is enumerate:
        iterated = _part(context, obj, source, 0)
        if iterated is None:
            return None
        count = ReadSource(iterator_state.enumerate_count, (source,))
        return LiveEnumerate(obj, source, iterated, context.wrap(iterator_state.enumerate_count(obj), count))
    if kind is zip:
        number = iterator_state.iterated_count(obj)
        count = ReadSource(iterator_state.iterated_count, (source,))
        if source in context.varying or context.changing.get(count, 0) >= OFTEN:
            return VaryingZip(obj, source)
        parts = [_part(context, obj, source, index) for index in range(number)]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts) or not parts:
            return None
        context.guard(count, GuardKind.EQUALS, number)
        strict = iterator_state.is_strict(obj)
        context.guard(ReadSource(iterator_state.is_strict, (source,)), GuardKind.EQUALS, strict)
        return LiveZip(obj, source, found, strict)
    return LiveIterator(obj, source)


def _part(context: CaptureContext, obj: Any, source: Source, index: int) -> LiveIterator | None:
    part = iterator_state.iterated_part(obj, index)
    if type(part) not in iterator_state.READABLE:
        return None
    where = ReadSource(iterator_state.iterated_part, (source, ConstantSource(repr(index), index)))
    found = context.wrap(part, where)
    return found if isinstance(found, LiveIterator) else None
