"""Compiled functions met by capture: followed into the function they were made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..entry import original
from ..recipe import Constant, Load, Recipe
from ..source import AttrSource, Source
from .base import Value

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


class CompiledFunctionValue(Value):
    """The entry that `stator.compile(function)` gave; a call of it is a call of the function."""

    __slots__ = ("entry",)

    def __init__(self, entry: Any, source: Source | None) -> None:
        self.source = source
        self.entry = entry

    def function(self, tracer: Tracer) -> Value:
        source = None if self.source is None else AttrSource(self.source, "_function")
        return tracer.wrap(original(self.entry), source)

    def python_type(self, tracer: Tracer) -> type:
        return type(self.entry)

    def real(self) -> Any:
        return self.entry

    def key(self, tracer: Tracer) -> Any:
        return self.entry

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        function = self.function(tracer)
        tracer.enters_through(self, function)
        return function.call(tracer, args, kwargs)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return self.function(tracer).get_attr(tracer, name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return Constant(self.entry) if self.source is None else Load(self.source)
