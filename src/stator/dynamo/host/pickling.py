"""How compiled functions are pickled; csrc/entry.c asks here. Works without torch. Modules are not its business."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any


def reduce_entry(entry: Any) -> Any:
    """What pickle makes of a compiled function: the name under which it is found, as of functions; where its name finds
    another, it is pickled as its original, since what is compiled belongs to this process."""
    found: Any = sys.modules.get(entry.__module__)
    for name in entry.__qualname__.split("."):
        found = getattr(found, name, None)
    return entry.__qualname__ if found is entry else (original_function, (entry._original,))


def original_function(function: FunctionType) -> FunctionType:
    return function
