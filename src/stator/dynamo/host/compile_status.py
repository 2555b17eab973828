"""What user code may ask about compilation, what it is told, and the name of the mark by which it opts out (read by
compile_directives.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType

from .native_status import native as _native

# set on functions that must run as they are: "frame" for the function alone, "recursive" for all that it calls too
DISABLED_MARK = "_stator_disabled"


def is_compiling() -> bool:
    """True inside code that is being captured, and in what was compiled from it; False in code that runs eagerly.

    Capture answers calls of this function by the constant True; called for real, it says whether a compilation is under
    way in this thread.
    """
    return _native is not None and _native.compiling_depth() > 0


@dataclass(slots=True)
class Told:
    """What a program is told when it asks whether it is compiled: yes, unless it fails when it hears that.

    Many libraries ask in order not to look at data, and go ways then that nobody takes otherwise. Where a capture ends
    in an error after such an answer, it begins anew with the other one, which is eager's.
    """

    compiling: bool = True
    asked: bool = False  # since the capture under way began
    by: CodeType | None = None  # the code that failed
