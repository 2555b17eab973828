"""The lines of a kernel's body, which printers of loops and of products write one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Statements:
    """Lines of Python in a function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1


__all__ = ["Statements"]
