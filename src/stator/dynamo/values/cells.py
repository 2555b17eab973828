"""Closure cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stator.dynamo.guards.source import AttrSource, FunctionSource, ItemSource, Source
from stator.dynamo.ir.reconstruct_ir import FrameCell, Load, NewCell, Recipe

from .base import Value, unsupported

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor


class CellValue(Value):
    """A cell. `content` is None while it is empty. A cell of the captured frame has a `frame_name`.

    fixed: a guard holds the identity of the cell's function, and so of the cell. private: only the captured frame held
    the cell when it was entered."""

    __slots__ = ("cell", "content", "fixed", "frame_name", "private")

    def __init__(
        self,
        content: Value | None,
        source: Source | None = None,
        cell: Any = None,
        frame_name: str | None = None,
        *,
        fixed: bool = False,
        private: bool = False,
    ) -> None:
        self.source = source
        self.content = content
        self.cell = cell
        self.frame_name = frame_name
        self.fixed = fixed
        self.private = private

    def python_type(self, context: CaptureContext) -> type:
        return type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]

    def place(self, context: CaptureContext) -> Source:
        """The source of a cell from outside: its own, or a place in the closure of the captured function."""
        if self.source is not None:
            return self.source
        closure = context.function.__closure__ or ()
        index = next((at for at, one in enumerate(closure) if one is self.cell), None)
        if index is None:
            raise unsupported("unguardable", "a cell that is both a variable of the frame and a value")
        return ItemSource(AttrSource(FunctionSource(), "__closure__"), index)

    @property
    def was_shared(self) -> bool:
        """Whether others than the captured frame may have held the cell when the frame was entered."""
        return not self.private and (self.source is not None or self.frame_name is not None)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.frame_name is not None:
            return FrameCell(self.frame_name)
        if self.source is not None:
            return Load(self.source)
        recipe = NewCell(None)
        reconstructor.remember(self, recipe)
        if self.content is not None:
            recipe.content = reconstructor.recipe(self.content)
        return recipe


def is_empty(cell: Any) -> bool:
    """Guard predicate."""
    try:
        cell.cell_contents  # noqa: B018 (raises for an empty cell)
    except ValueError:
        return True
    return False
