"""slice and range objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..emit import support
from ..naming import class_name
from ..recipe import Constant, Load, NewSlice, Recipe
from ..source import Source
from .base import Value
from .constants import ConstantMethod, ConstantValue
from .iterators import ContainerIterator

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


def _attribute(tracer: Tracer, owner: Any, name: str) -> Value:
    found = tracer.run_real(getattr, (owner, name))
    if getattr(found, "__self__", None) is owner:
        return ConstantMethod(owner, name, found)
    return tracer.wrap_result(found, f"{class_name(type(owner))}.{name}")


class SliceValue(Value):
    """A slice; its parts may be tensors or constants."""

    __slots__ = ("start", "step", "stop")

    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        self.source = source
        self.start, self.stop, self.step = start, stop, step

    def python_type(self, tracer: Tracer) -> type:
        return slice

    def constant(self) -> slice:
        return slice(self.start.constant(), self.stop.constant(), self.step.constant())

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return getattr(self, name)
        return _attribute(tracer, tracer.constant_of(self, f"a slice that is asked for {name}"), name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return NewSlice(exits.recipe(self.start), exits.recipe(self.stop), exits.recipe(self.step))


class RangeValue(Value):
    """A range with known bounds."""

    __slots__ = ("range",)

    def __init__(self, value: range, source: Source | None = None) -> None:
        self.source = source
        self.range = value

    def python_type(self, tracer: Tracer) -> type:
        return range

    def real(self) -> Any:
        return self.range

    def constant(self) -> range:
        return self.range

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.range)

    def length(self, tracer: Tracer) -> int:
        return tracer.run_real(len, (self.range,))

    def iterate(self, tracer: Tracer) -> Iterator[Value]:
        return (ConstantValue(number) for number in self.range)

    def iterator(self, tracer: Tracer) -> Value:
        return ContainerIterator(self, self.iterate(tracer), support.range_iterator_at, type(iter(self.range)))

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return tracer.constant_of(item, "operand of `in`") in self.range

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        found = tracer.run_real(lambda value, at: value[at], (self.range, tracer.constant_of(key, "index of a range")))
        return RangeValue(found) if isinstance(found, range) else ConstantValue(found)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return _attribute(tracer, self.range, name)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return Constant(self.range) if self.source is None else Load(self.source)
