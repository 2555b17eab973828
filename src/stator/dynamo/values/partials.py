"""functools.partial objects, and the getters of `operator`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from stator.dynamo.guards.source import Source
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Load, Recipe

from .base import CaptureContext, Reconstructor, Value, unsupported
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


def _get_items(keys: tuple[Any, ...], holder: Any) -> Any:
    return holder[keys[0]] if len(keys) == 1 else tuple([holder[key] for key in keys])


def _get_attributes(paths: tuple[str, ...], holder: Any) -> Any:
    found = []
    for path in paths:
        value = holder
        for name in path.split("."):
            value = getattr(value, name)
        found.append(value)
    return found[0] if len(found) == 1 else tuple(found)


def _call_method(given: tuple[Any, ...], holder: Any, **keywords: Any) -> Any:
    return getattr(holder, given[0])(*given[1:], **keywords)


GETTERS: dict[type, Callable[..., Any]] = {
    operator.itemgetter: _get_items,
    operator.attrgetter: _get_attributes,
    operator.methodcaller: _call_method,
}


class GetterValue(Value):
    """An itemgetter, attrgetter or methodcaller: capture follows a Python function that means its call."""

    __slots__ = ("args", "cls", "keywords")

    def __init__(self, cls: type, args: list[Value], keywords: dict[str, Value], source: Source | None = None) -> None:
        self.cls = cls
        self.args = args
        self.keywords = keywords
        self.source = source

    def describe(self, context: CaptureContext) -> str:
        return f"an operator.{self.cls.__name__}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs:
            raise unsupported("call", f"{self.describe(context)} with other than one argument")
        return context.call(context.known(GETTERS[self.cls]), [TupleValue(self.args), *args], self.keywords)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        keywords = {name: reconstructor.recipe(value) for name, value in self.keywords.items()}
        return CallRecipe(ConstantRecipe(self.cls), [reconstructor.recipe(arg) for arg in self.args], keywords)
