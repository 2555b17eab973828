"""`Captured` + compiled graph -> code object that stands in for the captured frame's."""

from .failures import OnFailure
from .frame import emit

__all__ = ["OnFailure", "emit"]
