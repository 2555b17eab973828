"""The log of what the captured code changed, so that it can be replayed behind the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .messages import Message
    from .scopes import GlobalScope
    from .values.base import Value
    from .values.cells import CellValue
    from .values.live_iterators import LiveIterator


class MutationLog:
    """Entries in the order of each place's last change. Only things that existed before the frame need replaying;
    what the frame made itself is rebuilt in its final state."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int, str], tuple[str, Any, str]] = {}

    def _note(self, kind: str, value: Any, name: str = "") -> None:
        key = (kind, id(value), name)
        self.entries.pop(key, None)
        self.entries[key] = (kind, value, name)

    def content(self, value: Value) -> None:
        if value.source is not None:
            self._note("content", value)

    def attribute(self, value: Value, name: str) -> None:
        if value.source is not None:
            self._note("attribute", value, name)

    def cell(self, cell: CellValue) -> None:
        if cell.source is not None or cell.frame_name is not None:
            self._note("cell", cell)

    def message(self, message: Message) -> None:
        self._note("message", message)

    def iterator(self, iterator: LiveIterator) -> None:
        self._note("iterator", iterator)

    def scope(self, scope: GlobalScope) -> None:
        self._note("scope", scope)

    def touches(self, value: Value) -> bool:
        """Whether the captured code changed this very object."""
        return any(changed is value for _, changed, _ in self.entries.values())
