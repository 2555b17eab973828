"""`Captured` + compiled graph -> code object that stands in for the captured frame's."""

from .breaks import slot_of
from .failures import OnFailure
from .frame import emit
from .inner import InnerCall
from .own_code import emit_own_code, is_right_on_any_path
from .steps import LeftInside, calls_something, emit_steps
from .writer import GeneratorCode

__all__ = [
    "GeneratorCode",
    "InnerCall",
    "LeftInside",
    "OnFailure",
    "calls_something",
    "emit",
    "emit_own_code",
    "emit_steps",
    "is_right_on_any_path",
    "slot_of",
]
