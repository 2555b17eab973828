"""Globals of a frame: real module dictionaries, read through guarded sources, below the writes of captured code."""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any

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

from .base import Value, unsupported

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

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
