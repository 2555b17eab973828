"""Other dictionary entries and operands while a library function runs, such as an optimizer's step. Code of the program
that the library calls, such as the step's closure, sees the real entries; so does everything after the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stator.dynamo.values.base import CaptureContext, Value
from stator.dynamo.values.containers.mappings import DictValue

from .frame import Frame

Operands = Callable[["CaptureContext", Any, list["Value"]], list["Value"]]


class LibraryOverride:
    """`frame`: the library function's. `operands`: changes the arguments of torch's functions."""

    def __init__(self, frame: Frame, instead: list[tuple[DictValue, Any, Value]], operands: Operands | None) -> None:
        self.frame = frame
        self._library = _package(frame)
        self._instead = instead
        self._hidden: list[Value] = []
        self._operands = operands
        self._outside: Frame | None = None  # frame of the program's code that the function called
        self._show()

    @property
    def operands(self) -> Operands | None:
        return self._operands if self._outside is None else None

    def enters(self, frame: Frame) -> None:
        if self._outside is None and _package(frame) != self._library:
            self._outside = frame
            self.hide()

    def leaves(self, frame: Frame) -> None:
        if self._outside is frame:
            self._outside = None
            self._show()

    def _show(self) -> None:
        self._instead = [one for one in self._instead if one[1] in one[0].entries]
        self._hidden = [mapping.entries[key] for mapping, key, _ in self._instead]
        for mapping, key, value in self._instead:
            mapping.entries[key] = value

    def hide(self) -> None:
        for (mapping, key, _), value in zip(self._instead, self._hidden, strict=True):
            mapping.entries[key] = value


def _package(frame: Frame) -> str:
    return str(frame.globals.names.get("__name__")).partition(".")[0]
