"""The question whether code is being compiled, and the name of the opt-out mark (read by compile_directives.py)."""

from __future__ import annotations

from .native_status import native as _native

# attribute of functions that opt out: "frame" for the function alone, "recursive" for its callees, too
DISABLED_MARK = "_stator_disabled"


def is_compiling() -> bool:
    """True inside captured and compiled code; False in code that runs eagerly.

    Capture answers a call with the constant True. A real call returns whether this thread is compiling.
    """
    return _native is not None and _native.compiling_depth() > 0
