"""Code objects that stator runs instead of a user's: marked, so that no frame hook compiles them again."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from .native_status import native


def _mark_unhooked(code: CodeType) -> None:
    native.mark_code(code, True)


code_marks: list[Callable[[CodeType], None]] = [_mark_unhooked]  # called with each of these code objects


def mark_as_ours(code: CodeType) -> None:
    """Tell every hook that stator runs this code."""
    for mark in code_marks:
        mark(code)
