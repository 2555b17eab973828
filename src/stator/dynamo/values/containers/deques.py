"""collections.deque made in the frame and used as a stack, as contextlib.ExitStack does. Other uses end the graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, NewList, Recipe
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import ObjectValue


class DequeValue(ObjectValue):
    __slots__ = ("items",)

    def __init__(self) -> None:
        super().__init__(deque)
        self.items: list[Value] = []

    def truth(self, context: CaptureContext) -> bool:
        return bool(self.items)

    def builtin_method(self, context: CaptureContext, name: str) -> Callable[..., Value] | None:
        return _METHODS.get(name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        items = NewList([reconstructor.recipe(item) for item in self.items])
        return CallRecipe(ConstantRecipe(deque), [items])


def _append(context: CaptureContext, self: DequeValue, item: Value) -> Value:
    context.mutations.content(self)
    self.items.append(item)
    return ConstantValue(None)


def _pop(context: CaptureContext, self: DequeValue) -> Value:
    if not self.items:
        raise context.raised(IndexError, "pop from an empty deque")
    context.mutations.content(self)
    return self.items.pop()


_METHODS: dict[str, Callable[..., Value]] = {"append": _append, "pop": _pop}
