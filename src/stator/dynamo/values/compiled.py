"""Compiled functions inside captured code. Capture follows the original function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stator.dynamo.cache.entry import original
from stator.dynamo.guards.source import AttrSource, Source
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe

from .base import Value

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor


class CompiledFunctionValue(Value):
    """The entry that `stator.compile(function)` returned. Its call is a call of the function."""

    __slots__ = ("entry",)

    def __init__(self, entry: Any, source: Source | None) -> None:
        self.source = source
        self.entry = entry

    def function(self, context: CaptureContext) -> Value:
        source = None if self.source is None else AttrSource(self.source, "_function")
        return context.wrap(original(self.entry), source)

    def python_type(self, context: CaptureContext) -> type:
        return type(self.entry)

    def real(self) -> Any:
        return self.entry

    def key(self, context: CaptureContext) -> Any:
        return self.entry

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        function = self.function(context)
        context.enters_through(self, function)
        return function.call(context, args, kwargs)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return self.function(context).get_attr(context, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self.entry) if self.source is None else Load(self.source)
