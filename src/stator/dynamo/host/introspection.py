"""Which functions of a program count or list the interpreter's objects and references: those that compiling makes are
among them, so that such a frame, and what it calls, runs as it is. What else programs look at is not here.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

# by name, as attribute or imported by itself; not gc.collect() and the like, which tell nothing that can be relied on
_OBSERVERS: dict[str, tuple[ModuleType, Any]] = {
    "get_objects": (gc, gc.get_objects),
    "get_referrers": (gc, gc.get_referrers),
    "getrefcount": (sys, sys.getrefcount),
    "getallocatedblocks": (sys, sys.getallocatedblocks),
}
_NAMES = frozenset(_OBSERVERS)


def observer_in(code: CodeType, namespace: Mapping[str, Any]) -> str | None:
    """Which of these functions the code asks by name, with these globals; None if none."""
    for part in (code, *_comprehensions(code)):
        if _NAMES.isdisjoint(part.co_names):
            continue
        for name in _NAMES.intersection(part.co_names):
            module, function = _OBSERVERS[name]
            if namespace.get(name) is function or _names_module(part, namespace, module):
                return f"{module.__name__}.{name}"
    return None


def _names_module(code: CodeType, namespace: Mapping[str, Any], module: ModuleType) -> bool:
    """Whether the module is imported in the code, or among the globals that it reads."""
    names = code.co_names
    imported = module.__name__ in names and module.__name__ not in namespace
    return imported or any(namespace.get(name) is module for name in names)


def _comprehensions(code: CodeType) -> Iterator[CodeType]:
    """Those in it, which before 3.12 have codes of their own."""
    for constant in code.co_consts:
        if type(constant) is CodeType and constant.co_name.startswith("<") and constant.co_name != "<lambda>":
            yield constant
