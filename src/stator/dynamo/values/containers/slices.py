"""slice and range objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stator.dynamo.codegen import support
from stator.dynamo.guards.source import Source
from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantMethod, ConstantValue

from .iterators import ContainerIterator

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor


def _attribute(context: CaptureContext, owner: Any, name: str) -> Value:
    found = context.run_real(getattr, (owner, name))
    if getattr(found, "__self__", None) is owner:
        return ConstantMethod(owner, name, found)
    return context.wrap_result(found, f"{class_name(type(owner))}.{name}")


class SliceValue(Value):
    """A slice; its parts may be tensors or constants."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        self.source = source
        self.start, self.stop, self.step = start, stop, step

    def python_type(self, context: CaptureContext) -> type:
        return slice

    def constant(self) -> slice:
        return slice(self.start.constant(), self.stop.constant(), self.step.constant())

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return getattr(self, name)
        return _attribute(context, context.constant_of(self, f"a slice that is asked for {name}"), name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return call_recipe(slice, *map(reconstructor.recipe, (self.start, self.stop, self.step)))


class RangeValue(Value):
    """A range with known bounds."""

    __slots__ = ("range",)

    def __init__(self, value: range, source: Source | None = None) -> None:
        self.source = source
        self.range = value

    def python_type(self, context: CaptureContext) -> type:
        return range

    def real(self) -> Any:
        return self.range

    def constant(self) -> range:
        return self.range

    def truth(self, context: CaptureContext) -> bool:
        return bool(self.range)

    def length(self, context: CaptureContext) -> int:
        return context.run_real(len, (self.range,))

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        return (ConstantValue(number) for number in self.range)

    def iterator(self, context: CaptureContext) -> Value:
        return ContainerIterator(self, self.iterate(context), support.range_iterator_at, type(iter(self.range)))

    def contains(self, context: CaptureContext, item: Value) -> bool:
        return context.constant_of(item, "operand of `in`") in self.range

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        found = context.run_real(
            lambda value, at: value[at], (self.range, context.constant_of(key, "index of a range"))
        )
        return RangeValue(found) if isinstance(found, range) else ConstantValue(found)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return _attribute(context, self.range, name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self.range) if self.source is None else Load(self.source)
