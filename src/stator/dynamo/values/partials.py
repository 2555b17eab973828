"""functools.partial objects."""

from __future__ import annotations

import functools

from stator.dynamo.guards.source import Source
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, Recipe

from .base import CaptureContext, Reconstructor, Value
from .constants import ConstantValue
from .containers.mappings import DictValue
from .containers.sequences import TupleValue


class PartialValue(Value):
    """`functools.partial(function, *args, **keywords)`."""

    __slots__ = ("args", "function", "keywords")
    cls = functools.partial

    def __init__(
        self,
        function: Value,
        args: list[Value],
        keywords: dict[str, Value],
        source: Source | None = None,
    ) -> None:
        self.source = source
        self.function = function
        self.args = args
        self.keywords = keywords

    def describe(self, context: CaptureContext) -> str:
        return f"functools.partial of {self.function.describe(context)}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        named = {name: context.realized(value) for name, value in self.keywords.items()}
        context.enters_through(self, self.function)
        return self.function.call(context, [*map(context.realized, self.args), *args], {**named, **kwargs})

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(list(self.args))
        if name == "keywords":
            made = DictValue({})
            for key, value in self.keywords.items():
                made.put(context, ConstantValue(key), value)
            return made
        if name == "__call__":
            return self
        if self.source is not None or hasattr(functools.partial, name):
            return super().get_attr(context, name)
        raise context.raised(AttributeError, f"'functools.partial' object has no attribute '{name}'")

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return CallRecipe(
            ConstantRecipe(functools.partial),
            [reconstructor.recipe(self.function), *map(reconstructor.recipe, self.args)],
            {name: reconstructor.recipe(value) for name, value in self.keywords.items()},
        )
