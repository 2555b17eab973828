"""Iterators over known items: list, tuple, dict, range iterators, zip, map, enumerate and their like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..recipe import CallRecipe, Constant, NewList, Recipe
from .base import Raised, Value, cannot_rebuild

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

LIST_ITERATOR: type = type([].__iter__())


class IteratorValue(Value):
    """Wraps a real Python iterator over Values, advanced as the captured program advances it.

    `pure` says that taking the remaining items early changes nothing that the program could see.
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
        self.items = items
        self.pure = pure
        self.cls = cls
        self.made_at = made_at

    def python_type(self, tracer: Tracer) -> type:
        return self.cls

    def next_item(self, tracer: Tracer) -> Value | None:
        """The next item, or None when there is none left."""
        item = next(self.items, None)
        return tracer.realized(item) if item is not None else None

    def iterate(self, tracer: Tracer) -> Iterator[Value]:
        return self.items

    def iterator(self, tracer: Tracer) -> Value:
        return self

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "__next__":
            return IteratorNext(self)
        if name == "__iter__":
            return IteratorSelf(self)
        return super().get_attr(tracer, name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if not self.pure:
            raise cannot_rebuild("an iterator over computed items cannot leave the graph", self.made_at)
        rest = list(self.items)
        self.items = iter(rest)
        return CallRecipe(Constant(iter), [NewList([exits.recipe(item) for item in rest])])


class IteratorSelf(Value):
    """`iterator.__iter__`."""

    __slots__ = ("owner",)

    def __init__(self, owner: Value) -> None:
        self.source = None
        self.owner = owner

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.owner


class IteratorNext(IteratorSelf):
    """`iterator.__next__`."""

    __slots__ = ()

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        item = tracer.next_item(self.owner)
        if item is None:
            raise tracer.raised(StopIteration, "")
        return item


def stop_aware(tracer: Tracer, step: Value) -> Iterator[Value]:
    """Items made by calling `step` (a `__next__`) until it raises StopIteration."""
    while True:
        try:
            item = tracer.call(step, [], {})
        except Raised as raised:
            if issubclass(raised.value.python_type(tracer), StopIteration):
                return
            raise
        yield item
