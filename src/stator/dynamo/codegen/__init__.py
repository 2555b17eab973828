"""`Captured` + compiled graph -> code object that stands in for the captured frame's."""

from .breaks import slot_of
from .failures import OnFailure
from .frame import emit
from .generator_frames import calls_something, emit_steps
from .nested_exit import InnerCall
from .original_frame import emit_own_code, is_right_on_any_path
from .writer import GeneratorCode

__all__ = [
    "GeneratorCode",
    "InnerCall",
    "OnFailure",
    "calls_something",
    "emit",
    "emit_own_code",
    "emit_steps",
    "is_right_on_any_path",
    "slot_of",
]
