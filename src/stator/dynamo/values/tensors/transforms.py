"""Functions that transforms of torch.func return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value, cannot_rebuild

Call = Callable[["CaptureContext", "TransformedValue", list[Value], dict[str, Value]], Value]


class TransformedValue(Value):
    """`transform(function, **options)`, e.g. by torch.func.grad; `on_call` captures its call."""

    __slots__ = ("function", "on_call", "options", "transform")

    def __init__(self, transform: Any, function: Value, options: dict[str, Value], on_call: Call) -> None:
        self.source = None
        self.transform = transform
        self.function = function
        self.options = options
        self.on_call = on_call

    def python_type(self, context: CaptureContext) -> type:
        return type(lambda: None)

    def describe(self, context: CaptureContext) -> str:
        return f"{self.transform.__name__} of {self.function.describe(context)}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.on_call(context, self, args, kwargs)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return self.function.get_attr(context, name)  # functools.wraps

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        options = {name: reconstructor.recipe(value) for name, value in self.options.items()}
        return CallRecipe(ConstantRecipe(self.transform), [reconstructor.recipe(self.function)], options)


class PullbackValue(Value):
    """The function of cotangents that torch.func.vjp returns beside the result."""

    __slots__ = ("made_at", "on_call")

    def __init__(self, on_call: Callable[[CaptureContext, list[Value]], Value], made_at: int) -> None:
        self.source = None
        self.on_call = on_call
        self.made_at = made_at

    def python_type(self, context: CaptureContext) -> type:
        return type(lambda: None)

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.on_call(context, args)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("a function that torch.func.vjp made", self.made_at)
