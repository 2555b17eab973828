"""functools.partial objects."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..recipe import CallRecipe, Constant, Load, Recipe
from ..source import Source
from .base import Value
from .constants import ConstantValue
from .mappings import DictValue
from .sequences import TupleValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


class PartialValue(Value):
    """`functools.partial(function, *args, **keywords)`."""

    __slots__ = ("args", "function", "keywords")

    def __init__(
        self, function: Value, args: list[Value], keywords: dict[str, Value], source: Source | None = None
    ) -> None:
        self.source = source
        self.function = function
        self.args = args
        self.keywords = keywords

    def python_type(self, tracer: Tracer) -> type:
        return functools.partial

    def describe(self, tracer: Tracer) -> str:
        return f"functools.partial of {self.function.describe(tracer)}"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        named = {name: tracer.realized(value) for name, value in self.keywords.items()}
        tracer.enters_through(self, self.function)
        return self.function.call(tracer, [*map(tracer.realized, self.args), *args], {**named, **kwargs})

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(list(self.args))
        if name == "keywords":
            made = DictValue({})
            for key, value in self.keywords.items():
                made.put(tracer, ConstantValue(key), value)
            return made
        if name == "__call__":
            return self
        raise tracer.raised(AttributeError, f"'functools.partial' object has no attribute '{name}'")

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return CallRecipe(
            Constant(functools.partial),
            [exits.recipe(self.function), *map(exits.recipe, self.args)],
            {name: exits.recipe(value) for name, value in self.keywords.items()},
        )
