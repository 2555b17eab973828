"""The kinds of things that can be called, and the compiled call of each. What a compilation is stands in convert.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from . import entry as entries
from .convert import Converter
from .marks import disabled

ORIGINAL = "_stator_original"  # slot of a compiled module that holds the module it was made from


def original_of(target: Any) -> Any:
    """What was compiled: the plain function, bound method or module; anything else as it is."""
    if entries.is_entry(target):
        return entries.original(target)
    if isinstance(target, MethodType) and entries.is_entry(target.__func__):
        return MethodType(entries.original(target.__func__), target.__self__)
    if hasattr(type(target), ORIGINAL):
        return getattr(target, ORIGINAL)
    return target


def compiled_call(target: Any, converter: Converter) -> Callable[..., Any]:
    """What calls `target` and compiles the frame that starts: for functions, bound methods and instances."""
    target = original_of(target)
    if disabled(target) == "frame":  # itself it runs as it is, but what it calls is compiled
        return functools.update_wrapper(converter.entry(_caller_of(target)), target)
    if isinstance(target, FunctionType):
        return converter.entry(target)
    if isinstance(target, MethodType) and isinstance(target.__func__, FunctionType):
        return MethodType(converter.entry(target.__func__), target.__self__)
    call = original_of(type(target).__call__)
    if isinstance(call, FunctionType):
        return MethodType(converter.entry(call), target)
    return functools.update_wrapper(converter.entry(_caller_of(target)), target, updated=())


def _caller_of(function: Callable[..., Any]) -> Any:
    """A Python function that calls something that is none."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call
