"""slice and range objects."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import torch

from stator.dynamo.codegen import support
from stator.dynamo.guards.source import Source
from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value, unsupported
from stator.dynamo.values.constants import ConstantMethod, ConstantValue
from stator.dynamo.values.symbolic_numbers import (
    SymbolicNumber,
    example_of,
    is_known_when_the_graph_runs,
    is_open,
)
from stator.shapes.conditions import compare
from stator.shapes.expr import as_expr

from .iterators import ContainerIterator


def _attribute(context: CaptureContext, owner: Any, name: str) -> Value:
    found = context.run_real(getattr, (owner, name))
    if getattr(found, "__self__", None) is owner:
        return ConstantMethod(owner, name, found)
    return context.wrap_result(found, f"{class_name(type(owner))}.{name}")


class SliceValue(Value):
    """A slice; its parts may be tensors or constants."""

    __slots__ = ("start", "step", "stop")
    cls = slice

    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        self.source = source
        self.start, self.stop, self.step = start, stop, step

    def constant(self) -> slice:
        return slice(self.start.constant(), self.stop.constant(), self.step.constant())

    def key(self, context: CaptureContext) -> Any:
        if slice.__hash__ is None:  # before CPython 3.12
            raise context.raised(TypeError, "unhashable type: 'slice'")
        return super().key(context)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return getattr(self, name)
        return _attribute(context, context.constant_of(self, f"a slice that is asked for {name}"), name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        return call_recipe(slice, *map(reconstructor.recipe, (self.start, self.stop, self.step)))


class RangeValue(Value):
    """A range. `bounds`: its start, stop and step, or some of them, where they may be no constants. All uses but loops
    make constants of them: a loop whose bounds change, and one over a range with `turns`, its length for all sizes."""

    __slots__ = ("_known", "bounds", "turns")
    cls = range

    def __init__(
        self,
        value: range | None = None,
        source: Source | None = None,
        bounds: tuple[SymbolicNumber | ConstantValue, ...] = (),
        turns: int | None = None,
    ) -> None:
        self.source = source
        self._known = value
        self.bounds = bounds
        self.turns = turns

    @property
    def example(self) -> range:
        """The range in this call, without guards."""
        return range(*map(example_of, self.bounds)) if self._known is None else self._known

    @property
    def open_bounds(self) -> list[SymbolicNumber]:
        """The bounds that are no constants."""
        return [] if self._known is not None else [bound for bound in self.bounds if is_open(bound)]

    @property
    def has_open_length(self) -> bool:
        """Whether the length is no constant."""
        return self.turns is None and bool(self.open_bounds)

    def backwards(self, context: CaptureContext) -> RangeValue:
        """`self[::-1]`, with open bounds if the step is 1."""
        if not self.open_bounds or len(self.bounds) == 3:
            return RangeValue(context.constant_of(self, "a range")[::-1])
        start, stop = [ConstantValue(0), *self.bounds][-2:]
        before = [context.binary(operator.sub, bound, ConstantValue(1)) for bound in (stop, start)]
        return range_of(context, [*before, ConstantValue(-1)])

    def symbolic_length(self) -> Any:
        """`len(range)` of open bounds. The step is a constant, unless the length is one."""
        if self.turns is not None:
            return self.turns
        start, stop, step = (bound.number if is_open(bound) else bound.constant() for bound in self._all_bounds())
        return torch.sym_max(0, -((start - stop) // step) if step > 0 else -((stop - start) // -step))

    def _all_bounds(self) -> list[SymbolicNumber | ConstantValue]:
        return _all_bounds(self.bounds)

    def real(self) -> Any:
        return self.constant()

    def constant(self) -> range:
        if self._known is None:
            self._known = range(*(bound.constant() for bound in self.bounds))
        return self._known

    def fix(self, why: str) -> None:
        """Make constants of open bounds. Facts about them say why."""
        environment: Any = self.open_bounds[0].symbols.environment  # of a capture, which locates facts
        locate = environment.locate
        with environment.located(lambda: replace(locate(), why=why)):
            self.constant()

    def truth(self, context: CaptureContext) -> bool:
        return bool(self.constant())

    def length(self, context: CaptureContext) -> int:
        return context.run_real(len, (self.constant(),))

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        if self.turns is None or not self.open_bounds:
            for number in self.constant():
                yield ConstantValue(number)
            return
        start, _, step = self._all_bounds()
        for turn in range(self.turns):
            yield context.binary(operator.add, start, context.binary(operator.mul, step, ConstantValue(turn)))

    def iterator(self, context: CaptureContext) -> Value:
        kind: type = type(iter(self.example))
        return ContainerIterator(self, self.iterate(context), support.range_iterator_at, kind)

    def contains(self, context: CaptureContext, item: Value) -> bool:
        return context.constant_of(item, "operand of `in`") in self.constant()

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        found = context.run_real(
            lambda value, at: value[at], (self.constant(), context.constant_of(key, "index of a range"))
        )
        return RangeValue(found) if isinstance(found, range) else ConstantValue(found)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        return _attribute(context, self.constant(), name)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        if self.open_bounds:
            return call_recipe(range, *map(reconstructor.recipe, self.bounds))
        return ConstantRecipe(self.constant())


def range_of(context: CaptureContext, bounds: Sequence[Value], source: Source | None = None) -> RangeValue:
    """`range(*bounds)`. Numbers that change stay open, the step only where the length is one for all sizes."""
    if any(is_open(bound) and is_known_when_the_graph_runs(bound) for bound in bounds):
        raise unsupported("data-dependent-value", "a range over a number that is known when the graph runs")
    turns = _turns(bounds)
    kept = tuple(
        bound if is_open_bound(bound) and (at < 2 or turns is not None) else ConstantValue(context.index_of(bound))
        for at, bound in enumerate(bounds)
    )
    made = RangeValue(None, source, kept, turns)
    if len(kept) not in (1, 2, 3) or not made.open_bounds:
        return RangeValue(context.run_real(range, tuple(bound.constant() for bound in kept)), source)
    context.run_real(lambda: made.example, ())  # raises the program's error about the step
    return made


def _all_bounds(bounds: Sequence[Any]) -> list[Any]:
    """Start, stop and step."""
    return [ConstantValue(0), *bounds, ConstantValue(1)] if len(bounds) == 1 else [*bounds, ConstantValue(1)][:3]


def _turns(bounds: Sequence[Value]) -> int | None:
    """The length of a range if it is one for all sizes: `range(0, n, n)` has one turn. None if it is not, for a step
    that may be negative, and for constant bounds."""
    if not 1 <= len(bounds) <= 3 or not any(map(is_open_bound, bounds)):
        return None
    if not all(is_open_bound(bound) or type(getattr(bound, "value", None)) is int for bound in bounds):
        return None
    environment = next(bound for bound in bounds if is_open_bound(bound)).symbols.environment
    start, stop, step = (bound.expression if is_open(bound) else as_expr(bound.value) for bound in _all_bounds(bounds))
    if environment.evaluate_static(compare(">", step, 0)) is not True:
        return None
    length = environment.simplify(-((start - stop) // step)).constant
    return None if length is None else max(length, 0)


def is_open_bound(bound: Value) -> TypeGuard[SymbolicNumber]:
    """Whether this is an int that is no constant of the capture, and known in this call."""
    return is_open(bound) and bound.kind is int and not is_known_when_the_graph_runs(bound)
