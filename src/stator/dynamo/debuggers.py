"""Which trace functions belong to debuggers: under those compiled functions run eagerly, line by line, as a person who
steps through them or sets breakpoints expects. Under coverage and profilers they run compiled.

Under sys.monitoring (3.12) a debugger is who uses DEBUGGER_ID; csrc/switches.c looks there itself.
"""

from __future__ import annotations

import bdb
from typing import Any

from .native_status import native as _native

_MODULES = ("pydevd", "_pydevd", "debugpy", "pudb")


def is_debugger(trace_function: Any) -> bool:
    """Whether what was given to sys.settrace is the standard library's Bdb, something made from it, or pydevd's."""
    owner = getattr(trace_function, "__self__", None)
    if isinstance(owner, bdb.Bdb):
        return True
    modules = (getattr(trace_function, "__module__", None), type(owner).__module__, type(trace_function).__module__)
    return any(str(module).startswith(_MODULES) for module in modules)


if _native is not None:
    _native.set_debugger_test(is_debugger)
