"""Warnings of torch's functions that capture runs on tensors without data. They come from frames of stator, so they are
kept from the program: capture follows a Python function that warns, and gives a C++ operator's warning at the user's
line. Warnings of kernels, which need data, come from running the operator on a small example."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch


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
    """Raise PythonWarning in place of a warning of torch's Python code."""

    def takes(text: str) -> bool:
        if text.startswith("stator: "):
            return False
        raise PythonWarning

    with _filtered(takes):
        yield


@contextmanager
def cpp_warnings_kept(function: Any, texts: list[str]) -> Iterator[None]:
    """Keep the texts of the warnings of C++ operators; all warnings, if the function that runs is written in C."""
    in_c = isinstance(function, BuiltinFunctionType | MethodDescriptorType)

    def takes(text: str) -> bool:
        if in_c or of_operator(text):
            texts.append(text)
            return True
        return False

    with _filtered(takes):
        yield


def of_operator(text: str) -> bool:
    """Whether an operator gives this warning, often once in a process. A function of torch's Python module that is
    written in C gives its own warnings in each call."""
    return "(Triggered internally at " in text


def warnings_of_kernel(name: str, args: list[Any]) -> list[str]:
    """The warnings that this operator's kernel gives once in a process, unless it gave them before."""
    example = _DEPRECATED.get(name)
    if example is None or (name == "where" and getattr(args[0], "dtype", None) != torch.uint8):
        return []
    return _warnings_of(example)


_DEPRECATED: dict[str, Callable[[], Any]] = {
    "cholesky": lambda: torch.cholesky(torch.ones(1, 1)),
    "triangular_solve": lambda: torch.triangular_solve(torch.ones(1, 1), torch.ones(1, 1)),
    "where": lambda: torch.where(torch.ones(1, dtype=torch.uint8), torch.ones(1), torch.ones(1)),
}


def warnings_of_variance(name: str, args: list[Any], kwargs: dict[str, Any], result: Any) -> list[str]:
    """The warnings that each call of `var` and its relatives gives if the correction leaves no degree of freedom."""
    if name not in ("var", "std", "var_mean", "std_mean"):
        return []
    sizes = args[0].numel(), (result[0] if isinstance(result, tuple) else result).numel()
    correction = kwargs.get(
        "correction", kwargs.get("unbiased", next((one for one in args if type(one) is bool), True))
    )
    known = all(type(size) is int or size.node.has_hint() for size in sizes)
    if not known or not all(sizes) or sizes[0] // sizes[1] > (1 if correction is None else correction):
        return []
    return _warnings_of(lambda: getattr(torch, name)(torch.ones(1)))


def _warnings_of(example: Callable[[], Any]) -> list[str]:
    texts: list[str] = []
    with cpp_warnings_kept(None, texts):
        example()
    return texts
