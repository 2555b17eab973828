"""`Captured` + compiled graph -> code object that stands in for the captured frame's."""

from .frame import emit

__all__ = ["emit"]
