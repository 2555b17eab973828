"""Calls of nested resume functions: the rest of a frame behind a graph break calls the rest of the function that it had
called. Capture follows it like any Python function; the cells of its closure are arguments."""

from __future__ import annotations

from typing import Any

from stator.dynamo.graph.finalizers import check_handed_on
from stator.dynamo.guards.source import Source
from stator.dynamo.host.native_status import native
from stator.dynamo.interpreter.frame import follow_rest
from stator.dynamo.interpreter.wrapping import wraps
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Recipe
from stator.dynamo.ir.resume import closure_of
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value, unsupported
from stator.dynamo.values.scopes import CellValue


class InnerFrameValue(Value):
    """The rest of an inlined function behind a graph break."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.source = None
        self.inner = inner

    def python_type(self, context: CaptureContext) -> type:
        return type(self.inner)

    def real(self) -> Any:
        return self.inner

    def describe(self, context: CaptureContext) -> str:
        return "the rest of a function behind a graph break"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if context.frames[-1].program.code in context.assumptions.called_apart:
            raise unsupported(
                "disabled", "the rest of an inlined function, which is compiled apart from its caller now"
            )
        function = self.inner._target._function
        code = function.__code__
        free = len(closure_of(code))
        cells = tuple(cell for cell in args[:free] if isinstance(cell, CellValue))
        if len(cells) < free:
            raise unsupported("unguardable", "a closure of other objects than cells")
        check_handed_on(context.frames[-1], args[free:])
        return follow_rest(context, function, cells, args[free:])

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self.inner)


if native is not None:

    @wraps(native.Inner)
    def _inner(context: CaptureContext, obj: Any, source: Source | None) -> Value:
        return InnerFrameValue(obj)
