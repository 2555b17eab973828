"""Marks the code objects that stator runs in place of a user's, so that no frame hook compiles them again."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from .native_status import native


def _mark_unhooked(code: CodeType) -> None:
    native.mark_code(code, True)


code_marks: list[Callable[[CodeType], None]] = [_mark_unhooked]  # called with each marked code object


def mark_as_ours(code: CodeType) -> None:
    """Tell every frame hook that stator runs this code."""
    for mark in code_marks:
        mark(code)
