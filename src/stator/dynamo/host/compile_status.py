"""What user code may ask about compilation, what it is told, and the name of the mark by which it opts out (read by
compile_directives.py).
"""

from __future__ import annotations

from .native_status import native as _native

# set on functions that must run as they are: "frame" for the function alone, "recursive" for all that it calls too
DISABLED_MARK = "_stator_disabled"


def is_compiling() -> bool:
    """True inside code that is being captured, and in what was compiled from it; False in code that runs eagerly.

    Capture answers calls of this function by the constant True; called for real, it says whether a compilation is under
    way in this thread.
    """
    return _native is not None and _native.compiling_depth() > 0
