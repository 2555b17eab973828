"""The pickling of compiled functions, called by csrc/entry.c. Works without torch. Modules are pickled elsewhere."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any


def reduce_entry(entry: Any) -> Any:
    """The pickle form of a compiled function: its qualified name, as for any function. If the name leads to another
    object, the original function is pickled, because compiled code belongs to this process."""
    found: Any = sys.modules.get(entry.__module__)
    for name in entry.__qualname__.split("."):
        found = getattr(found, name, None)
    return entry.__qualname__ if found is entry else (original_function, (entry._original,))


def original_function(function: FunctionType) -> FunctionType:
    return function
