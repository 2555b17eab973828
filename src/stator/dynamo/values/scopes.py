"""Globals of a frame: real module dictionaries, read through guarded sources, below the writes of captured code; and
closure cells."""

from __future__ import annotations

import builtins
import sys
from typing import Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import (
    AttrSource,
    BuiltinSource,
    ConstantSource,
    FunctionSource,
    GlobalSource,
    ItemSource,
    ModuleGlobalSource,
    Source,
)
from stator.dynamo.ir.reconstruct_ir import FrameCell, Load, NewCell, Recipe

from .base import CaptureContext, Reconstructor, Value, unsupported

_MISSING = object()


class GlobalScope:
    """One globals dictionary. `own` marks the captured frame's."""

    __slots__ = ("functions", "module", "names", "own", "source", "values", "written")

    def __init__(
        self,
        names: dict[str, Any],
        own: bool,
        source: Source | None = None,
        functions: dict[str, Any] = builtins.__dict__,
    ) -> None:
        self.names = names
        self.functions = functions
        self.own = own
        self.values: dict[str, Value] = {}
        self.written: dict[str, Value | None] = {}
        name = names.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        self.module = name if module is not None and vars(module) is names else None
        if own:
            self.source: Source = AttrSource(FunctionSource(), "__globals__")
        elif self.module is not None:
            self.source = AttrSource(ConstantSource(self.module, module), "__dict__")
        else:
            self.source = source or ConstantSource("globals", names)

    def source_of(self, name: str) -> Source:
        if self.own:
            return GlobalSource(name)
        return ModuleGlobalSource(self.module, name) if self.module is not None else ItemSource(self.source, name)

    def load(self, context: CaptureContext, name: str) -> Value:
        found = self.values.get(name)
        if found is None:
            found = self.values[name] = self._read(context, name)
        return found

    def _read(self, context: CaptureContext, name: str) -> Value:
        if name not in self.written:
            real = self.names.get(name, _MISSING)
            if real is not _MISSING:
                return context.wrap(real, self.source_of(name))
            context.guard(self.source, GuardKind.NOT_IN, name)
        real = self.functions.get(name, _MISSING)
        if self.functions is not builtins.__dict__:
            raise unsupported(
                "call-builtin", f"{name!r} among built-in functions that are not those of the interpreter"
            )
        if real is _MISSING:
            raise context.raised(NameError, f"name '{name}' is not defined")
        context.guard(BuiltinSource(name), GuardKind.IS, real)
        return context.known(real)

    def rely_on_absence(self, context: CaptureContext, *names: str) -> None:
        """Guard that none of these names is there, but for names that captured code has written or deleted."""
        for name in names:
            if name not in self.names and name not in self.written:
                context.guard(self.source, GuardKind.NOT_IN, name)

    def store(self, context: CaptureContext, name: str, value: Value | None) -> None:
        """Write a name; value None deletes it."""
        if name not in self.names and name not in self.written:
            context.guard(self.source, GuardKind.NOT_IN, name)
        if value is None:
            gone = self.written[name] is None if name in self.written else name not in self.names
            if gone:
                raise context.raised(NameError, f"name '{name}' is not defined")
            self.values.pop(name, None)
        else:
            self.values[name] = value
        self.written[name] = value
        context.mutations.scope(self)


class CellValue(Value):
    """A cell. `content` is None while it is empty. A cell of the captured frame has a `frame_name`.

    fixed: a guard holds the identity of the cell's function, and so of the cell. private: only the captured frame held
    the cell when it was entered."""

    __slots__ = ("cell", "content", "fixed", "frame_name", "private")
    cls = type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]

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
