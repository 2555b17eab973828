"""Closure cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..recipe import FrameCell, Load, NewCell, Recipe
from ..source import Source
from .base import Value

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


class CellValue(Value):
    """A cell: `content` is None while it is empty. A cell of the captured frame itself has a `frame_name`."""

    __slots__ = ("cell", "content", "frame_name", "mutated")

    def __init__(
        self,
        content: Value | None,
        source: Source | None = None,
        cell: Any = None,
        frame_name: str | None = None,
    ) -> None:
        self.source = source
        self.content = content
        self.cell = cell
        self.frame_name = frame_name
        self.mutated = False

    def python_type(self, tracer: Tracer) -> type:
        return type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.frame_name is not None:
            return FrameCell(self.frame_name)
        if self.source is not None:
            return Load(self.source)
        recipe = NewCell(None)
        exits.remember(self, recipe)
        if self.content is not None:
            recipe.content = exits.recipe(self.content)
        return recipe
