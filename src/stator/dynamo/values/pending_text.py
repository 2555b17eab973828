"""Text that shows a tensor, such as the message of a check that may never fail. If the program uses such text, or it
leaves the graph, the graph ends ahead of the step that made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stator.dynamo.ir.reconstruct_ir import Recipe

from .base import Value, cannot_rebuild, unsupported

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor

_REASON = "a tensor in a string"


class PendingTextValue(Value):
    """A str that capture does not make. made_at: the step of the outermost frame that makes it."""

    __slots__ = ("made_at",)

    def __init__(self, made_at: int) -> None:
        super().__init__()
        self.made_at = made_at

    def python_type(self, context: CaptureContext) -> type:
        return str

    def describe(self, context: CaptureContext) -> str:
        return _REASON

    def key(self, context: CaptureContext) -> Any:
        raise unsupported("format", _REASON)

    def truth(self, context: CaptureContext) -> bool:
        raise unsupported("format", _REASON)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild(_REASON, self.made_at)
