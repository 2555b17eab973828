"""`CapturedFrame` + compiled graph -> code object that replaces the captured frame's code."""

from .breaks import slot_of
from .failures import FailureHandling
from .frame import emit
from .generator_frames import calls_something, emit_generator
from .nested_exit import InnerCall
from .original_frame import emit_original_frame, is_right_on_any_path

__all__ = [
    "FailureHandling",
    "InnerCall",
    "calls_something",
    "emit",
    "emit_generator",
    "emit_original_frame",
    "is_right_on_any_path",
    "slot_of",
]
