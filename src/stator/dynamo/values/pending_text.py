"""Text that shows numbers of a tensor: messages are made before it is known whether anybody reads them.

Text with tensors of one element in it is made when the graph has run. Of other tensors it cannot be: where such text is
used, or leaves the graph, the graph ends where it was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, NewTuple, Recipe

from .base import Value, cannot_rebuild, unsupported

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor

_REASON = "a tensor in a string"


class PendingTextValue(Value):
    """A str that is not made unless it is needed. made_at: the step of the outermost frame that made it. parts: text,
    and copies of tensors of no dimension with how they are formatted; None for what can only be made there."""

    __slots__ = ("made_at", "parts")

    def __init__(self, made_at: int, parts: list[str | tuple[Value, str]] | None = None) -> None:
        super().__init__()
        self.made_at = made_at
        self.parts = parts

    def python_type(self, context: CaptureContext) -> type:
        return str

    def describe(self, context: CaptureContext) -> str:
        return _REASON

    def key(self, context: CaptureContext) -> Any:
        raise unsupported("format", _REASON)

    def truth(self, context: CaptureContext) -> bool:
        raise unsupported("format", _REASON)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.parts is None:
            raise cannot_rebuild(_REASON, self.made_at)
        parts = [
            ConstantRecipe(part)
            if isinstance(part, str)
            else NewTuple([reconstructor.recipe(part[0]), ConstantRecipe(part[1])])
            for part in self.parts
        ]
        return CallRecipe(ConstantRecipe(_joined), list(parts))


def joined(parts: list[PendingTextValue | str]) -> PendingTextValue:
    """Parts of an f-string, of which one at least is pending."""
    pending = [part for part in parts if not isinstance(part, str)]
    found: list[str | tuple[Value, str]] = []
    for part in parts:
        if isinstance(part, str):
            found.append(part)
        elif part.parts is None:
            return part
        else:
            found += part.parts
    return PendingTextValue(pending[0].made_at, found)


def _joined(*parts: str | tuple[torch.Tensor, str]) -> str:
    return "".join([part if isinstance(part, str) else format(part[0], part[1]) for part in parts])
