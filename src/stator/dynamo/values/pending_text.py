"""Text that shows numbers of a tensor: messages are made before it is known whether anybody reads them.

Nothing can be asked of it. Where it is used, or leaves the graph, the graph ends where it was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..recipe import Recipe
from .base import Value, cannot_rebuild, unsupported

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

_REASON = "a tensor in a string"


class PendingTextValue(Value):
    """A str that is not made unless it is needed. made_at: the step of the outermost frame that made it."""

    __slots__ = ("made_at",)

    def __init__(self, made_at: int) -> None:
        super().__init__()
        self.made_at = made_at

    def python_type(self, tracer: Tracer) -> type:
        return str

    def describe(self, tracer: Tracer) -> str:
        return _REASON

    def key(self, tracer: Tracer) -> Any:
        raise unsupported("format", _REASON)

    def truth(self, tracer: Tracer) -> bool:
        raise unsupported("format", _REASON)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        raise cannot_rebuild(_REASON, self.made_at)
