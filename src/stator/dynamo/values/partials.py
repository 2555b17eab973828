"""functools.partial objects, and the callables that `operator` makes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..guard import GuardKind
from ..recipe import CallRecipe, Constant, Load, Recipe
from ..source import AttrSource, ItemSource, Source
from .base import Value
from .constants import ConstantValue
from .mappings import DictValue
from .sequences import TupleValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


class PartialValue(Value):
    """`functools.partial(function, *args, **keywords)`."""

    __slots__ = ("args", "attributes", "function", "keywords", "obj")

    def __init__(
        self,
        function: Value,
        args: list[Value],
        keywords: dict[str, Value],
        source: Source | None = None,
        obj: Any = None,
    ) -> None:
        self.source = source
        self.obj = obj
        self.attributes: dict[str, Value] = {}  # that the captured code gave to one that it made
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
        if name in self.attributes:
            return self.attributes[name]
        if self.obj is not None and self.source is not None:
            if name in vars(self.obj):
                return tracer.wrap(vars(self.obj)[name], ItemSource(AttrSource(self.source, "__dict__"), name))
            tracer.guard(AttrSource(self.source, "__dict__"), GuardKind.NOT_IN, name)
        if hasattr(functools.partial, name):
            return super().get_attr(tracer, name)
        raise tracer.raised(AttributeError, f"'functools.partial' object has no attribute '{name}'")

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if self.source is not None or hasattr(functools.partial, name):
            super().set_attr(tracer, name, value)
        self.attributes[name] = value

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        made = CallRecipe(
            Constant(functools.partial),
            [exits.recipe(self.function), *map(exits.recipe, self.args)],
            {name: exits.recipe(value) for name, value in self.keywords.items()},
        )
        exits.remember(self, made)
        for name, value in self.attributes.items():
            exits.set_attr(made, name, value)
        return made


class MadeCallable(Value):
    """An `operator.attrgetter`, `itemgetter` or `methodcaller` that captured code made: followed as a closure that does
    the same. What leaves the graph, or is called where the graph ends, is the real one."""

    __slots__ = ("args", "closure", "keywords", "kind")

    def __init__(self, kind: type, args: list[Value], keywords: dict[str, Value], closure: Value) -> None:
        self.source = None
        self.kind = kind
        self.args = args
        self.keywords = keywords
        self.closure = closure

    def python_type(self, tracer: Tracer) -> type:
        return self.kind

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs:
            raise tracer.raised(TypeError, f"{self.kind.__name__}() takes no keyword arguments")
        if len(args) != 1:
            raise tracer.raised(TypeError, f"{self.kind.__name__} expected 1 argument, got {len(args)}")
        return self.closure.call(tracer, args, kwargs)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return self if name == "__call__" else super().get_attr(tracer, name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        named = {name: exits.recipe(value) for name, value in self.keywords.items()}
        return CallRecipe(Constant(self.kind), list(map(exits.recipe, self.args)), named)
