"""`CapturedFrame` + compiled graph -> code object that replaces the captured frame's code."""

from .breaks import slot_of
from .failures import FailureHandling
from .frame import emit
from .nested_exit import InnerCall
from .original_frame import emit_original_frame, is_right_on_any_path
