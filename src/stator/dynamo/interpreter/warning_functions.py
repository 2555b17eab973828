"""Functions of torch written in Python that warn, as `softmax` without a dimension: with which arguments they do is
found by running a twin of theirs, for which `warnings` is another module. No filter of the process is touched."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from torch.nn import _reduction

from stator.base.errors import Unsupported


class Warns(Unsupported):
    """Raised by a twin in the place of a warning."""


def twin_of(function: Any) -> Callable[..., Any]:
    """A function that does the same, but raises `Warns` where that one would warn; itself where it never warns."""
    return _twin(function) if type(function) is FunctionType and _may_warn(function) else function


@cache
def _may_warn(function: FunctionType) -> bool:
    """Whether its code names `warnings`, or something that may."""
    named = (function.__globals__.get(name) for name in function.__code__.co_names if name != function.__name__)
    return any(found is warnings or found is _reduction or _is_helper(found, function) for found in named)


def _is_helper(found: Any, user: FunctionType) -> bool:
    beside = type(found) is FunctionType and found.__globals__ is user.__globals__
    return beside and "warnings" in found.__code__.co_names


@cache
def _twin(function: FunctionType) -> FunctionType:
    code, names = function.__code__, _Names(function)
    twin = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


class _Names(dict[str, Any]):
    """The globals of a twin: those of its function, as they are when they are read."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function

    def __missing__(self, name: str) -> Any:
        found = self.function.__globals__[name]
        if found is warnings or found is _reduction:
            return _Twins(found)
        return _twin(found) if _is_helper(found, self.function) else found


class _Twins:
    """A module as twins see it."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        if self.module is warnings:
            return _refuse if name == "warn" else getattr(warnings, name)
        return twin_of(getattr(self.module, name))


def _refuse(message: Any, *rest: Any, **named: Any) -> NoReturn:
    raise Warns("operator-warning", f"torch warns with these arguments: {message}")
