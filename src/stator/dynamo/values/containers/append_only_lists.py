"""Lists from outside of the frame. Guards hold only their type while the frame does no more than append."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stator.base.errors import UserPlace
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import ItemSource, Source, length_source
from stator.dynamo.values.base import Lazy, Value, unsupported
from stator.dynamo.values.objects import ObjectValue

from .sequences import ListValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_OFTEN = 2  # changes of the length after which no guard may hold it


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
        if self.context.changing.get(length_source(source), 0) >= _OFTEN:
            raise unsupported("varying-length", f"the items of {source}, a list whose length changes from call to call")
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
