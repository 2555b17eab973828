"""A table of handlers, which register themselves by a decorator.

Two handlers for one key are a programming error, refused at import time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
F = TypeVar("F")


class Registry(Generic[K, V]):
    """Maps keys to handlers. `what` names the kind of key in error messages, e.g. "opcode"."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._table: dict[K, V] = {}

    def register(self, *keys: K) -> Callable[[F], F]:
        """Decorator: `@registry.register(key, ...)`. Raises ValueError when a key is taken."""

        def decorate(handler: F) -> F:
            for key in keys:
                self.add(key, handler)  # type: ignore[arg-type]
            return handler

        return decorate

    def add(self, key: K, handler: V) -> None:
        if key in self._table:
            raise ValueError(f"duplicate {self.what} {key!r}: already handled by {self._table[key]!r}")
        self._table[key] = handler

    def add_all(self, handlers: Mapping[K, V]) -> None:
        """Add a table of handlers that are one expression each."""
        for key, handler in handlers.items():
            self.add(key, name_lambda(handler, getattr(key, "__name__", str(key))))

    def remove(self, key: K) -> None:
        del self._table[key]

    def get(self, key: K) -> V | None:
        return self._table.get(key)

    def __getitem__(self, key: K) -> V:
        return self._table[key]

    def __contains__(self, key: object) -> bool:
        return key in self._table

    def __iter__(self) -> Iterator[K]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def known(self) -> list[str]:
        """Return the names of all keys, sorted, for error messages."""
        return sorted(str(key) for key in self._table)


def name_lambda(handler: F, name: str) -> F:
    """Give a lambda of a table the name of its row, for errors and reports; returns the handler."""
    if getattr(handler, "__name__", "") == "<lambda>":
        handler.__name__ = handler.__qualname__ = name  # type: ignore[attr-defined]
    return handler
