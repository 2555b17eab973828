"""Warnings of torch's functions that capture runs on tensors without data. They come from frames of stator, so they are
kept from the program: capture follows a Python function that warns, and gives a C++ operator's warning at the user's
line."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PythonWarning(BaseException):
    """A function of torch written in Python warns. No Exception, so that the function does not handle it."""


class _TextFilter:
    """Stands for the pattern of texts in a warning filter: looks at the texts of one thread's warnings."""

    def __init__(self, takes: Callable[[str], bool]) -> None:
        self.takes, self.thread = takes, threading.get_ident()

    def match(self, text: str) -> bool:
        return threading.get_ident() == self.thread and self.takes(text)


@contextmanager
def _filtered(takes: Callable[[str], bool]) -> Iterator[None]:
    """Silence this thread's warnings that `takes` answers with True. Other than `catch_warnings`, this does not make
    Python forget which warnings were given once."""
    pattern = _TextFilter(takes)
    entry = ("ignore", pattern, Warning, None, 0)
    filters = warnings.filters
    filters.insert(0, entry)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        pattern.thread = 0  # for copies of the list
        if entry in filters:
            filters.remove(entry)  # type: ignore[attr-defined]


@contextmanager
def python_warnings_raised() -> Iterator[None]:
    """Raise PythonWarning in place of a warning of Python code."""

    def takes(text: str) -> bool:
        raise PythonWarning

    with _filtered(takes):
        yield


@contextmanager
def cpp_warnings_kept(texts: list[str]) -> Iterator[None]:
    """Keep the texts of the warnings of C++ operators."""

    def takes(text: str) -> bool:
        if "(Triggered internally at " in text:
            texts.append(text)
            return True
        return False

    with _filtered(takes):
        yield
