"""Iterators over known items: list, tuple, dict, range iterators, zip, map, enumerate and their like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stator.base.errors import Unsupported
from stator.dynamo.host.iterator_state import set_position
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Effect, NewList, Recipe, call_effect
from stator.dynamo.values.base import CaptureContext, Handler, Raised, Reconstructor, Value, cannot_rebuild, unsupported

LIST_ITERATOR: type = type([].__iter__())
_BACKWARDS: tuple[type, ...] = (reversed, type(reversed([])))


class IteratorValue(Value):
    """A Python iterator over Values, which advances as the captured program advances it.

    `pure`: taking the remaining items early has no effect that the program could see.
    """

    __slots__ = ("cls", "items", "made_at", "pure")

    def __init__(
        self,
        items: Iterator[Value],
        pure: bool = True,
        cls: type = LIST_ITERATOR,
        made_at: int | None = None,
    ) -> None:
        self.source = None
        self.items = items if pure else _without_stop(items)
        self.pure = pure
        self.cls = cls
        self.made_at = made_at

    def next_item(self, context: CaptureContext) -> Value | None:
        """The next item, or None at the end."""
        try:
            item = next(self.items, None)
        except Raised:
            self.items = _unknown_rest()
            raise
        except ValueError as error:  # `items` is a running generator
            raise unsupported("iteration", "an iterator that calls its own next() while it makes an item") from error
        return context.realized(item) if item is not None else None

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        return iter(lambda: context.next_item(self), None)  # type: ignore[arg-type,return-value]

    def iterator(self, context: CaptureContext) -> Value:
        return self

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name not in _METHODS:
            return super().get_attr(context, name)
        return context.bind(self, self.cls, name, context.class_lookup(self.cls, name))

    def builtin_method(self, context: CaptureContext, name: str) -> Handler | None:
        return _METHODS.get(name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if not self.pure or self.cls in _BACKWARDS:
            raise cannot_rebuild("an iterator over computed items cannot leave the graph", self.made_at)
        rest = list(self.items)
        self.items = iter(rest)
        return CallRecipe(ConstantRecipe(iter), [NewList([reconstructor.recipe(item) for item in rest])])


def _next(context: CaptureContext, self: IteratorValue) -> Value:
    context.ended_by = None
    item = self.next_item(context)
    if item is None:
        raise context.end_of_items()
    return item


_METHODS: dict[str, Handler] = {"__next__": _next, "__iter__": lambda context, self: self}


class ContainerIterator(IteratorValue):
    """An iterator over a container that may still change. Leaving the graph, `make(container, taken)` makes it anew.

    taken: the number of items that captured code has taken.
    """

    __slots__ = ("container", "drops", "ended", "make", "size", "taken")

    def __init__(
        self,
        container: Value,
        items: Iterator[Value],
        make: Callable[..., Any],
        cls: type = LIST_ITERATOR,
        entries: dict[Any, Any] | None = None,
        made_at: int | None = None,
    ) -> None:
        """`entries` of a dictionary, whose change of size ends the iterator."""
        super().__init__(items, True, cls, made_at)
        self.container = container
        self.drops = _drops_of(container)
        self.make = make
        self.size = None if entries is None else (entries, len(entries))
        self.taken = 0
        self.ended = False

    def next_item(self, context: CaptureContext) -> Value | None:
        item = None if self.ended else super().next_item(context)
        self.taken += 1
        self.ended = item is None
        return item

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.ended:
            return CallRecipe(ConstantRecipe(iter), [NewList([])])
        if _drops_of(self.container) != self.drops:
            raise cannot_rebuild("an iterator over a container that was changed", self.made_at)
        if self.size is not None and len(self.size[0]) != self.size[1]:
            raise cannot_rebuild("an iterator over a dictionary whose size was changed", self.made_at)
        container = reconstructor.recipe(self.container)
        changed = reconstructor.context.mutations.touches(getattr(self.container, "owner", self.container))
        if self.cls is LIST_ITERATOR and (changed or self.container.source is None):
            made = CallRecipe(ConstantRecipe(self.make), [container, ConstantRecipe(0)])  # the list may be empty there
            whole = Effect(container)  # with all that is in it: such as the iterator
            reconstructor.late += [whole, call_effect(set_position, made, ConstantRecipe(self.taken))]
            return made
        if changed:
            raise cannot_rebuild("an iterator over a container that was changed", self.made_at)
        return CallRecipe(ConstantRecipe(self.make), [container, ConstantRecipe(self.taken)])


class RowsIterator(IteratorValue):
    """The iterator of a tensor's rows. `iter(tensor)` makes it anew where it leaves the graph untouched."""

    __slots__ = ("asked", "tensor", "version")

    def __init__(self, tensor: Any, rows: Iterator[Value]) -> None:
        super().__init__(rows, cls=type(iter(())))
        self.tensor = tensor
        self.version = tensor.fake.fake_storage.version
        self.asked = False

    @property
    def untouched(self) -> bool:
        """Whether captured code has neither asked for a row nor changed the tensor."""
        return not self.asked and bool(self.tensor.fake.fake_storage.version == self.version)

    def next_item(self, context: CaptureContext) -> Value | None:
        self.asked = True
        return super().next_item(context)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if not self.untouched:
            return super().recipe(reconstructor)
        return CallRecipe(ConstantRecipe(iter), [reconstructor.recipe(self.tensor)])


def _drops_of(container: Any) -> int:
    """The number of keys removed from a dictionary, or from the dictionary of a view."""
    return int(getattr(getattr(container, "owner", container), "drops", 0))


class EnumerateValue(IteratorValue):
    """enumerate(iterator, count)."""

    __slots__ = ("count", "iterated")

    def __init__(self, iterated: Value, count: int) -> None:
        super().__init__(iter(()), cls=enumerate)
        self.iterated, self.count = iterated, count

    def next_item(self, context: CaptureContext) -> Value | None:
        item = context.next_item(self.iterated)
        if item is None:
            return None
        self.count += 1
        return context.tuple_of([context.constant(self.count - 1), item])

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return CallRecipe(ConstantRecipe(enumerate), [reconstructor.recipe(self.iterated), ConstantRecipe(self.count)])


class ZipValue(IteratorValue):
    """zip(*iterators, strict=strict); `items` are the rows."""

    __slots__ = ("iterated", "strict")

    def __init__(self, iterated: list[Value], strict: bool, rows: Iterator[Value]) -> None:
        super().__init__(rows, cls=zip)
        self.iterated, self.strict = iterated, strict

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        strict: dict[str, Recipe] = {"strict": ConstantRecipe(True)} if self.strict else {}
        return CallRecipe(ConstantRecipe(zip), [reconstructor.recipe(iterator) for iterator in self.iterated], strict)


class MapValue(IteratorValue):
    """map(function, *iterators)."""

    __slots__ = ("function", "iterated")

    def __init__(self, function: Value, iterated: list[Value]) -> None:
        super().__init__(iter(()), cls=map)
        self.function, self.iterated = function, iterated

    def next_item(self, context: CaptureContext) -> Value | None:
        row: list[Value] = []
        for iterator in self.iterated:
            item = context.next_item(iterator)
            if item is None:
                return None
            row.append(item)
        try:
            return context.call(self.function, row, {})
        except Raised as raised:
            if issubclass(raised.value.python_type(context), StopIteration):
                context.ended_by = raised  # next() raises this very exception
                return None
            raise

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return CallRecipe(
            ConstantRecipe(map), [reconstructor.recipe(self.function), *map(reconstructor.recipe, self.iterated)]
        )


def _without_stop(items: Iterator[Value]) -> Iterator[Value]:
    """Refuse a StopIteration of a called function: iterators in C end at it, but may go on later."""
    try:
        yield from items
    except Raised as raised:
        if issubclass(getattr(raised.value, "cls", object), StopIteration):
            raise stopped_inside() from None
        raise


def stopped_inside() -> Unsupported:
    return unsupported("iteration", "StopIteration raised by a function that an iterator calls")


def _unknown_rest() -> Iterator[Value]:
    """Python would go on behind the item that raised; the generator in `items` is at its end."""
    raise unsupported("iteration", "going on with an iterator that raised an exception")
    yield
