"""Loops over ranges whose bounds change from call to call, and over tensors whose number of rows does; `while` loops
whose condition depends on such numbers.

Capture unrolls loops, so each length would need a version of its own. Instead, the graph ends before the FOR_ITER of
such a loop, or at the jump that ends a turn: the interpreter takes the items, or jumps, and one compiled body serves
all turns. Over ranges, the body of a small loop is compiled for several turns, too, which run where as many are left.

A body that needs the values of the items or counters (`layers[i]`) would be compiled for each, so such a loop is
unrolled after all. Capture finds out by following one turn with numbers that are no constants, and starts again with
the answer. Rows of tensors need no such trial.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stator.dynamo.bytecode import Instruction, stored_variables
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import ConstantSource, ReadSource, SizeSource, StrideSource
from stator.dynamo.host import iterator_state
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, Loop, Retry
from stator.dynamo.ir.prepared_code import PreparedCode, item_parameter
from stator.dynamo.values.base import CaptureContext, Lazy, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.iterators import ContainerIterator, EnumerateValue, RowsIterator, ZipValue
from stator.dynamo.values.containers.live_iterators import LiveIterator, VaryingZip
from stator.dynamo.values.containers.slices import RangeValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, is_open
from stator.shapes.sym_node import to_expression

from .frame import Frame
from .nested_break import user_code

_UNROLLED_SIZES = 1  # number of changes of a size after which loops over it are not unrolled any more
_NUMBERS_OF_PARTS = 4  # changes of a size after which a number of parts that follows from it is no constant any more
_MOST_TURNS = 8  # in one graph, of a loop whose number of turns changes
_MOST_OPERATIONS = 64  # in these turns
_FIRST_VALUE = "the loop is unrolled for the first value of its bound"
_ONE_GRAPH = "the loop is unrolled because the graph may not end here"
_NEEDS_NUMBERS = "the loop is unrolled because a turn needs its number"


@dataclass(frozen=True, slots=True)
class _Trial:
    """A loop that capture follows for one turn, with `numbers` for its variables. iterator: None for a `while` loop."""

    loop: Loop
    iterator: Value | None
    numbers: Sequence[SymbolicNumber]


class VaryingLoops:
    """The loops of one capture attempt."""

    def __init__(self, context: CaptureContext, assumptions: CaptureAssumptions) -> None:
        self._context = context
        self._assumptions = assumptions
        self._trial: _Trial | None = None
        self._turns = 0  # of the resumed loop in this graph
        self.guards: tuple[Guard, ...] = ()  # of a graph that has no further turn

    def next_item(self, frame: Frame, iterator: Value) -> Value | None:
        """The item of the next turn, None at the end. Raises Unsupported where the interpreter takes the items."""
        if self._trial is not None and iterator is self._trial.iterator:
            self.settle()
        if self._resumes_in(frame, iterator):
            return self._further_turn(frame, iterator)  # type: ignore[arg-type]
        if any(map(self._has_varying_end, _iterated(iterator))):
            raise _left_to_the_interpreter()
        if not self._varies(iterator):
            return self._unrolled(iterator, _FIRST_VALUE if self._may_end_graphs() else _ONE_GRAPH)
        self.settle()  # a loop inside of the trial's
        loop = user_code(frame.program.code), frame.program.user_index(frame.now)
        unrolled = self._assumptions.unrolled.get(loop)
        if unrolled is None:
            return self._try(loop, iterator)
        if not unrolled:
            raise _left_to_the_interpreter()
        return self._unrolled(iterator, _NEEDS_NUMBERS)

    def _has_varying_end(self, iterator: Value) -> bool:
        """Whether this is an iterator, before its first item, over rows of a tensor or over items of a container whose
        length changes, such as `reversed(found)`, or a zip() of a changing number of iterators."""
        if isinstance(iterator, VaryingZip):
            return True
        if isinstance(iterator, LiveIterator):
            return iterator.source in self._context.varying and not iterator.position and self._may_end_graphs()
        return isinstance(iterator, RowsIterator) and iterator.untouched

    def _further_turn(self, frame: Frame, iterator: LiveIterator) -> Value:
        """The item of the next turn in a graph that resumed in a turn. Raises Unsupported if the graph has all of its
        turns."""
        context = self._context
        if not self._turns:
            self._turns = self._turns_together(iterator)
        if iterator.position + 1 >= self._turns:
            raise _left_to_the_interpreter()
        step = iterator_state.range_step(iterator.obj)
        first = frame.arguments[item_parameter(frame.program.code)]  # type: ignore[index]
        first = first.realize(context) if type(first) is Lazy else first
        if not is_open(first):  # turns with other numbers need another version
            raise _left_to_the_interpreter()
        if not iterator.position:
            context.guard(_range_step(iterator), GuardKind.EQUALS, step)
        iterator.pass_item(context)
        return context.binary(operator.add, first, context.constant(iterator.position * step))

    def _turns_together(self, iterator: LiveIterator) -> int:
        """The number of turns in one graph, which resumed in a turn and has followed it. Guards tell graphs of several
        turns from those of one, which runs when fewer are left."""
        operations = self._context.recorder.op_count
        if type(iterator.obj) not in iterator_state.OVER_RANGES or not operations or self._assumptions.turn_by_turn:
            return 1
        turns = _MOST_TURNS if operations * _MOST_TURNS <= _MOST_OPERATIONS else _MOST_TURNS // 2
        if operations * turns > _MOST_OPERATIONS or _range_step(iterator) in self._context.changing:
            return 1
        if iterator_state.has_upcoming(iterator.obj, turns - 2):
            return turns
        self.guards = (Guard(iterator.read(iterator_state.has_upcoming, turns - 2), GuardKind.EQUALS, False),)
        return 1

    def _unrolled(self, iterator: Value, why: str) -> Value | None:
        """The item of the next turn. Facts about the bounds of a range say why it is unrolled."""
        if _is_new_range(iterator) and iterator.container.has_open_length:  # type: ignore[attr-defined]
            iterator.container.fix(why)  # type: ignore[attr-defined]
        return self._context.next_item(iterator)

    def settle(self) -> None:
        """End the trial, if there is one. Raises Retry with its result."""
        trial = self._trial
        if trial is not None:
            fixed = self._context.recorder.numbers.fixed
            needed = any(one.expression in fixed for one in trial.numbers)
            raise Retry(self._assumptions.with_loop(trial.loop, unrolled=needed))

    def _try(self, loop: Loop, iterator: Value) -> Value:
        assert isinstance(iterator, ContainerIterator)
        items = iterator.container.example  # type: ignore[attr-defined]
        if not items:
            raise Retry(self._assumptions.with_loop(loop, unrolled=False))
        largest = max(items[0], items[-1])  # because 0 as a size is a constant
        number = self._changing("the number of a turn", largest)
        self._trial = _Trial(loop, iterator, [number])
        return number

    def _changing(self, name: str, number: int) -> SymbolicNumber:
        """A number of a turn, as one that is no constant."""
        source = ConstantSource(f"{name} ({number} in this turn)", number)
        return self._context.recorder.numbers.of_input(source, number)  # type: ignore[no-any-return]

    # -- `while` --

    def meet_test(self, frame: Frame, condition: Value, jump: Instruction) -> None:
        """Note that a conditional jump comes. Raises Unsupported where the interpreter takes the jump, at the end of a
        turn."""
        start = loop_start(frame.program, jump)
        if start is None:
            return
        loop = user_code(frame.program.code), frame.program.user_index(jump.index)
        if self._trial is not None and self._trial.loop == loop:
            self.settle()
        if type(condition) is not SymbolicNumber or not is_open(condition) or not self._may_end_graphs():
            return
        unrolled = self._assumptions.unrolled.get(loop)
        if unrolled or not condition.is_known:
            return
        if unrolled is not None or resumes_loop(frame.program) == start:
            raise _left_to_the_interpreter()
        if not self._changes(condition) or not _goes_on(frame.program, condition, jump):
            return
        self.settle()  # a loop inside of the trial's
        self._trial = _Trial(loop, None, self._open_counters(frame, start, jump))

    def _open_counters(self, frame: Frame, start: int, jump: Instruction) -> list[SymbolicNumber]:
        """The ints that a turn changes, as numbers that are no constants."""
        found = []
        for name in stored_names(frame.program, start, jump.index):
            value = frame.locals.get(name)
            if isinstance(value, ConstantValue) and type(value.value) is int:
                value = frame.locals[name] = self._changing(name, value.value)
            if type(value) is SymbolicNumber and value.kind is int and is_open(value):
                found.append(value)
        return found

    def has_varying_rows(self, tensor: Any) -> bool:
        """Whether the first size of a tensor is a symbol, and changes from call to call."""
        return self.change_often(tensor.fake.shape[:1])

    def check_parts(self, tensor: Any, dim: int = 0) -> None:
        """Raise Unsupported where a program makes a list of a tensor's rows, and their number changes: the interpreter
        makes the list."""
        if -tensor.fake.dim() <= dim < tensor.fake.dim() and self.change_often([tensor.fake.shape[dim]]):
            what = f"a list of the rows of {tensor.describe(self._context)}, whose number changes from call to call"
            raise unsupported("varying-length", what, "keep the rows in one tensor")

    def check_number_of_parts(self, tensor: Any, number: Any) -> None:
        """Raise Unsupported where a program divides a tensor into a number of parts that has changed often."""
        parts = self._context.recorder.numbers.value(number)
        if not is_open(parts) or not self._may_end_graphs() or self._is_unpacked():
            return
        if self._most_changes(parts.expression) >= _NUMBERS_OF_PARTS:
            what = f"parts of {tensor.describe(self._context)}, whose number changes from call to call"
            raise unsupported("varying-length", what, "pad to a few sizes")

    def _is_unpacked(self) -> bool:
        """Whether the program stores each item of this call's result in a variable, and so knows their number."""
        frame = self._context.frames[-1]
        return frame.program.instructions[frame.pc].opname == "UNPACK_SEQUENCE"

    def end_graphs_for(self, numbers: Iterable[SymbolicNumber]) -> bool:
        """Whether some numbers change from call to call, where the graph may end for this reason."""
        return self._may_end_graphs() and any(map(self._changes, numbers))

    def change_often(self, sizes: Iterable[Any]) -> bool:
        """Whether sizes change from call to call, where the graph may end for this reason."""
        symbolic = [size for size in sizes if type(size) is not int and size.node.has_hint()]
        return bool(symbolic) and self._may_end_graphs() and any(map(self._changes_often, symbolic))

    def _may_end_graphs(self) -> bool:
        context = self._context
        return context.in_the_call and not context.recorder.fullgraph and not self._assumptions.relies_on_changes

    def _varies(self, iterator: Value) -> bool:
        """Whether this is the iterator of a range, before its first item, whose bounds change from call to call."""
        if not _is_new_range(iterator) or not iterator.container.has_open_length:  # type: ignore[attr-defined]
            return False
        return self.end_graphs_for(iterator.container.open_bounds)  # type: ignore[attr-defined]

    def _changes(self, number: SymbolicNumber) -> bool:
        """Whether a number depends on ints that change from call to call, or on sizes that do so often."""
        numbers, changing = self._context.recorder.numbers.inputs, self._context.changing
        for symbol in number.expression.symbols:
            source = numbers.sources.get(symbol)
            if source is None:  # depends on data
                continue
            if symbol in numbers.numbers and changing.get(source) != 0:
                return True
            enough = _UNROLLED_SIZES if isinstance(source, SizeSource | StrideSource) else 1
            if changing.get(source, 0) >= enough:
                return True
        return False

    def _changes_often(self, size: Any) -> bool:
        return self._most_changes(to_expression(size)) >= _UNROLLED_SIZES

    def _most_changes(self, expression: Any) -> int:
        """The number of changes seen of the number in this expression that changed most often."""
        sources = self._context.recorder.numbers.inputs.sources
        known = (sources[one] for one in expression.symbols if one in sources)
        return max((self._context.changing.get(source, 0) for source in known), default=0)

    def _resumes_in(self, frame: Frame, iterator: Value) -> bool:
        """Whether the frame resumed behind this very FOR_ITER, where the interpreter took the item before."""
        if not isinstance(iterator, LiveIterator) or item_parameter(frame.program.code) is None:
            return False
        return frame.program.user_index(frame.now) == frame.program.resumption.point.index - 1  # type: ignore[union-attr]


def _is_new_range(iterator: Value) -> bool:
    """Whether this is the iterator of a range, before its first item."""
    return type(iterator) is ContainerIterator and not iterator.taken and isinstance(iterator.container, RangeValue)


def _iterated(iterator: Value) -> list[Value]:
    """The iterator, or the iterators inside of an enumerate() or zip()."""
    if isinstance(iterator, EnumerateValue):
        return _iterated(iterator.iterated)
    return list(iterator.iterated) if isinstance(iterator, ZipValue) else [iterator]


def loop_start(program: PreparedCode, jump: Instruction) -> int | None:
    """The first instruction of the turns of a loop that is no `for` loop, if this conditional jump ends a turn: it
    jumps back, or has a jump back as one of its ways, or such a jump behind it, with nothing but computing between."""
    if jump.index not in program.loop_starts:
        program.loop_starts[jump.index] = _find_loop_start(program, jump)
    return program.loop_starts[jump.index]


def _find_loop_start(program: PreparedCode, jump: Instruction) -> int | None:
    assert jump.target is not None
    for way in (jump.target, program.instructions[jump.index + 1]):
        back = _back(program, way)
        if back.index <= jump.index:
            return None if back.opname == "FOR_ITER" else back.index
    at = jump.index + 1
    while program.instructions[at].opname.startswith(_COMPUTES):
        at += 1
    behind = program.instructions[at]
    return loop_start(program, behind) if at > jump.index + 1 and behind.opname.startswith("POP_JUMP") else None


_COMPUTES = ("LOAD_FAST", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_ATTR", "COMPARE_OP", "BINARY_", "UNARY_", "TO_BOOL")


def _back(program: PreparedCode, way: Instruction) -> Instruction:
    """The instruction to which a jump back leads; any other instruction itself. Code that resumes at a jump back has a
    NOP before it."""
    jump = way
    while jump.opname == "NOP":
        jump = program.instructions[jump.index + 1]
    return jump.target if jump.opname.startswith("JUMP_BACKWARD") and jump.target is not None else way


def _goes_on(program: PreparedCode, condition: SymbolicNumber, jump: Instruction) -> bool:
    """Whether another turn follows in this call, as far as this jump tells."""
    assert jump.target is not None
    jumps = bool(condition.example) is ("_IF_TRUE" in jump.opname)
    if _back(program, jump.target).index <= jump.index:
        return jumps
    return not jumps


def resumes_loop(program: PreparedCode) -> int | None:
    """The first instruction of the turns of a loop, if the frame resumes there behind the jump that ends a turn."""
    point = program.resumption.point if program.resumption is not None else None
    if point is None or point.inner is not None or point.stack:
        return None
    for jump in program.instructions:
        start = loop_start(program, jump) if jump.opname.startswith("POP_JUMP") else None
        if start is not None:
            places = start, jump.index + 1, jump.target.index  # type: ignore[union-attr]
            back = {program.user_index(at) for at in places if _back(program, program.instructions[at]).index == start}
            if point.index in back:
                return start
    return None


def loop_counters(program: PreparedCode, arguments: Mapping[str, object]) -> list[str]:
    """The ints of a frame that resumes in a turn of a loop, whose next turns come with others."""
    if resumes_loop(program) is None:
        return []
    return [name for name, value in arguments.items() if type(value) is int]


def stored_names(program: PreparedCode, start: int, end: int) -> set[str]:
    """The names of local variables that these instructions store."""
    return {name for one in program.instructions[start:end] for name in stored_variables(one)}


def _range_step(iterator: LiveIterator) -> ReadSource:
    return ReadSource(iterator_state.range_step, (iterator.source,))  # type: ignore[arg-type]


def _left_to_the_interpreter() -> Exception:
    return unsupported("varying-loop", "a loop whose number of turns changes from call to call")
