"""Loops over ranges whose bounds change from call to call, and over tensors whose number of rows does.

Capture unrolls loops, so each length would need a version of its own. Instead, the graph ends before the FOR_ITER of
such a loop: the interpreter takes the items, and one compiled body serves all turns. A body that needs the values of
the items (`layers[i]`) would be compiled for each item, so such a loop is unrolled after all. Capture finds out by
following one turn with an item that is no constant, and starts again with the answer. Rows of tensors need no such
trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stator.dynamo.guards.source import ConstantSource
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, Loop, Retry
from stator.dynamo.ir.prepared_code import prepare_code
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.containers.iterators import ContainerIterator, EnumerateValue, RowsIterator, ZipValue
from stator.dynamo.values.containers.live_iterators import LiveIterator
from stator.dynamo.values.containers.slices import RangeValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.shapes.sym_node import to_expression

from .frame import Frame
from .nested_break import user_code

_UNROLLED_SIZES = 2  # number of values of a size for which loops over it are unrolled


@dataclass(frozen=True, slots=True)
class _Trial:
    """A loop that capture follows for one turn, with `item` for its variable."""

    loop: Loop
    iterator: Value
    item: SymbolicNumber


class VaryingLoops:
    """The loops of one capture attempt."""

    def __init__(self, context: CaptureContext, assumptions: CaptureAssumptions) -> None:
        self._context = context
        self._assumptions = assumptions
        self._trial: _Trial | None = None

    def next_item(self, frame: Frame, iterator: Value) -> Value | None:
        """The item of the next turn, None at the end. Raises Unsupported where the interpreter takes the items."""
        if self._trial is not None and iterator is self._trial.iterator:
            self.settle()
        if self._resumes_in(frame, iterator):
            raise _left_to_the_interpreter()
        if any(isinstance(one, RowsIterator) and one.untouched for one in _iterated(iterator)):
            raise _left_to_the_interpreter()
        if not self._varies(iterator):
            return self._context.next_item(iterator)
        self.settle()  # a loop inside of the trial's
        loop = user_code(frame.program.code), frame.program.user_index(frame.now)
        unrolled = self._assumptions.unrolled.get(loop)
        if unrolled is None:
            return self._try(loop, iterator)
        if not unrolled:
            raise _left_to_the_interpreter()
        return self._context.next_item(iterator)

    def settle(self) -> None:
        """End the trial, if there is one. Raises Retry with its result."""
        trial = self._trial
        if trial is not None:
            needed = trial.item.expression in self._context.recorder.numbers.fixed
            raise Retry(self._assumptions.with_loop(trial.loop, unrolled=needed))

    def _try(self, loop: Loop, iterator: Value) -> Value:
        assert isinstance(iterator, ContainerIterator)
        items = iterator.container.example  # type: ignore[attr-defined]
        if not items:
            raise Retry(self._assumptions.with_loop(loop, unrolled=False))
        # the last item, because 0 as a size is a constant
        place = ConstantSource(repr(items[-1]), items[-1])
        number = self._context.recorder.numbers.of_input(place, items[-1])
        self._trial = _Trial(loop, iterator, number)
        return number

    def has_varying_rows(self, tensor: Any) -> bool:
        """Whether the first size of a tensor is a symbol, and changes from call to call."""
        rows: Any = tensor.fake.shape[0] if tensor.fake.dim() else 1
        if type(rows) is int or not rows.node.has_hint() or not self._may_end_graphs():
            return False
        return self._changes_often(rows)

    def _may_end_graphs(self) -> bool:
        context = self._context
        return context.in_the_call and not context.recorder.fullgraph and not self._assumptions.relies_on_changes

    def _varies(self, iterator: Value) -> bool:
        """Whether this is the iterator of a range, before its first item, whose bounds change from call to call."""
        if not self._may_end_graphs():
            return False
        if type(iterator) is not ContainerIterator or iterator.taken or not isinstance(iterator.container, RangeValue):
            return False
        return any(map(self._changes, iterator.container.open_bounds))

    def _changes(self, bound: SymbolicNumber) -> bool:
        numbers = self._context.recorder.numbers.inputs
        read = bound.expression.symbols & numbers.numbers
        return self._changes_often(bound.number) or any(
            self._context.changing.get(numbers.sources[one]) != 0 for one in read
        )

    def _changes_often(self, size: Any) -> bool:
        sources = self._context.recorder.numbers.inputs.sources
        met = (self._context.changing.get(sources[one], 0) for one in to_expression(size).symbols)
        return max(met, default=0) >= _UNROLLED_SIZES

    def _resumes_in(self, frame: Frame, iterator: Value) -> bool:
        """Whether the frame resumed behind this very FOR_ITER, where the interpreter took the item before."""
        if not isinstance(iterator, LiveIterator) or behind_for_iter(frame) is None:
            return False
        return frame.program.user_index(frame.now) == frame.program.resumption.point.index - 1  # type: ignore[union-attr]


def _iterated(iterator: Value) -> list[Value]:
    """The iterator, or the iterators inside of an enumerate() or zip()."""
    if isinstance(iterator, EnumerateValue):
        return _iterated(iterator.iterated)
    return list(iterator.iterated) if isinstance(iterator, ZipValue) else [iterator]


def behind_for_iter(frame: Frame) -> str | None:
    """The parameter of the item, if the frame resumes behind a FOR_ITER that took one. None otherwise."""
    resumption = frame.program.resumption
    if resumption is None or resumption.point.inner is not None or not resumption.point.index:
        return None
    point = resumption.point
    loop = prepare_code(point.code).instructions[point.index - 1]
    if loop.opname != "FOR_ITER" or loop.target is None or loop.target.index == point.index:
        return None
    return point.stack_parameter(len(point.stack) - 1)


def _left_to_the_interpreter() -> Exception:
    return unsupported("varying-loop", "a loop whose number of turns changes from call to call")
