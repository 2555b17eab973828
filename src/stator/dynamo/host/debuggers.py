"""Recognizes the trace functions of debuggers. Under a debugger compiled functions run eagerly, line by line, so that
stepping and breakpoints work. Under coverage tools and profilers they run compiled, unless `cover_lines` is on.

With sys.monitoring (3.12) a debugger is the user of DEBUGGER_ID; csrc/switches.c checks that itself.
"""

from __future__ import annotations

import bdb
import os
from typing import Any

from .native_status import native as _native

_MODULES = ("pydevd", "_pydevd", "debugpy", "pudb")


def is_debugger(trace_function: Any) -> bool:
    """Whether a trace function belongs to the standard library's Bdb, to a subclass, or to pydevd."""
    owner = getattr(trace_function, "__self__", None)
    if isinstance(owner, bdb.Bdb):
        return True
    modules = (getattr(trace_function, "__module__", None), type(owner).__module__, type(trace_function).__module__)
    return any(str(module).startswith(_MODULES) for module in modules)


def cover_lines(on: bool = True) -> bool:
    """Run originals wherever lines are traced (`sys.settrace`; from CPython 3.12 on also the tool COVERAGE_ID of
    `sys.monitoring`), in the whole process. Returns the previous setting."""
    return _native.set_covering(on) if _native is not None else False


if _native is not None:
    if os.environ.get("STATOR_COVER_LINES", "0") not in ("", "0"):
        _native.set_covering(True)
    _native.set_debugger_test(is_debugger)
