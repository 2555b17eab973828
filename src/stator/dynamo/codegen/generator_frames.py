"""Generators and coroutines that run as they are: their own code, in which what they call is compiled. Between two
yields the frame hook is on; it is off while they wait, and while another generator works for them, which sees to
itself.

What a generator computes by itself is not captured here. Where a graph ended inside of a generator that was followed,
its code has a way into the middle, to the one operation that runs natively, behind which it waits to be followed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from stator.base.errors import CompileError
from stator.dynamo.bytecode import VERSION, BytecodeError, CodeBuilder, Handler, Instruction, assemble, decode
from stator.dynamo.host.native_status import native
from stator.dynamo.ir.generator_places import PAUSED, Place, Waits, note_places

from .breaks import CALL_PREFIXES, NO_WAY_ON

_DELEGATING = ("SEND",)  # `await` and `yield from`
_CALLING = ("CALL", "BEFORE_WITH", "BEFORE_ASYNC_WITH")
_NOT_CALLING = "CALL_INTRINSIC"  # the interpreter's own work: from 3.12 on each generator has one
_LEAVING = ("RETURN_VALUE", "RETURN_CONST")
_ROOM = 8  # on the stack, beyond what the program needs: the same in all code that is made of one function


def calls_something(code: CodeType) -> bool:
    """Whether there is anything in this code that could be compiled when it runs. (Operators of classes of the program
    are not looked for.)"""
    names = [instruction.opname for instruction in decode(code)]
    return any(name.startswith(_CALLING) and not name.startswith(_NOT_CALLING) for name in names)


@dataclass(frozen=True, slots=True)
class LeftInside:
    """A function that a generator has called, in the middle of which the graph ended.

    callee: puts it back there, and has it do one operation; it takes the values that the generator has in a tuple on
        top of its stack, and gives what is still to run.
    depth: of the generator's stack below that.
    """

    callee: Callable[..., Any]
    depth: int


def emit_steps(
    code: CodeType,
    begin: Callable[[], object],
    end: Callable[[], object],
    stopped_at: int | None = None,
    inside: LeftInside | None = None,
) -> CodeType:
    """Code of a generator, coroutine or async generator that calls `begin` where a step begins and `end` where it ends.
    `begin` may be called more than once in a step, and `end` outside of one.

    stopped_at: there is a place to wait before this instruction of the decoded code, behind which it waits again.
    inside: that has entered a function, and the place is in the middle of this.
    Raises CompileError for what cannot be expressed as bytecode.
    """
    try:
        steps = _Steps(decode(code), begin, end)
        if stopped_at is not None and inside is not None:
            steps.stop_inside(stopped_at, inside)
        elif stopped_at is not None:
            steps.stop_at(stopped_at)
        made = assemble(steps.instructions(), code)
    except BytecodeError as error:
        raise CompileError("dynamo", f"the code of a generator cannot be encoded: {error}") from error
    room = code.co_stacksize + _ROOM
    if made.co_stacksize > room:
        raise CompileError("dynamo", "the code of a generator needs more room than there is in its frame")
    made = made.replace(co_stacksize=room)
    note_places(made, code, steps.made, steps.places)
    return made


class _Steps:
    """Writes the code of one generator."""

    def __init__(self, original: list[Instruction], begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.original = original
        self.begin, self.end = begin, end
        self.made: list[Instruction] = []
        self.places: dict[int, Place] = {}  # of added yields
        self._ways_in: list[Instruction] = []

    def instructions(self) -> list[Instruction]:
        original, made = self.original, self.made
        handlers = {id(one.handler.target) for one in original if one.handler is not None}
        ends_of_delegation = {id(one.target) for one in original if one.opname in _DELEGATING}
        left = CodeBuilder().label()
        begun = False
        names = [instruction.opname for instruction in original]
        for at, (name, instruction) in enumerate(zip(names, original, strict=True)):
            before = names[at - 1] if at else ""
            delegation = id(instruction) in ends_of_delegation
            if id(instruction) in handlers or (delegation and name != "END_SEND"):
                instruction = self._moved(instruction)
                self._call(self.begin, instruction)
            if name in _DELEGATING:
                self._call(self.end, instruction)  # what is jumped back to is the instruction itself
            elif name in _LEAVING or (name == "YIELD_VALUE" and before not in _DELEGATING):
                instruction = self._moved(instruction)
                self._call(self.end, instruction)
            made.append(instruction)
            if name == "RESUME" and (not begun or (before == "YIELD_VALUE" and names[at - 2] not in _DELEGATING)):
                self._call(self.begin, instruction)
                made += self._ways_in if not begun else []
                begun = True
            if delegation and name == "END_SEND":
                self._call(self.begin, instruction)
        if not begun:
            raise CompileError("dynamo", "a generator without a beginning")
        self._protect(Handler(left, 0, lasti=False))
        made.append(left)
        self._call(self.end, left)
        last = CodeBuilder()
        last.position = left.position
        last.reraise()
        made += last.instructions
        return made

    def stop_at(self, index: int) -> None:
        """Write the way in to this instruction, which stands in front of everything else: a jump out of a loop leads
        forward only. `index` is that of the last of those that belong together."""
        original = self.original
        first = index
        if original[index].opname == "CALL":
            while original[first - 1].opname in CALL_PREFIXES:
                first -= 1
        over = CodeBuilder().label()
        builder = CodeBuilder()
        builder.jump(over)
        self._ways_in += builder.instructions
        operation = original[index]
        self._wait(Place(Waits.STEPPING, index), original[first])
        native = [one.copy() for one in original[first : index + 1]]
        self._ways_in += native
        jumped = None
        if operation.target is not None and operation.opname != "FOR_ITER":
            jumped = native[-1].target = CodeBuilder().label()
        if operation.opname not in NO_WAY_ON:
            self._go_on(original[index + 1])
        if jumped is not None:
            assert operation.target is not None
            self._ways_in.append(jumped)
            self._go_on(operation.target)
        self._ways_in.append(over)

    def stop_inside(self, index: int, inside: LeftInside) -> None:
        """The same in the middle of a function that this instruction has entered: it does an operation there, and then
        the generator waits with the rest of the function, whose result is what the instruction gives."""
        operation, behind = self.original[index], self.original[index + 1]
        over, thrown = CodeBuilder().label(), CodeBuilder().label()
        builder = CodeBuilder()
        builder.jump(over)
        self._ways_in += builder.instructions
        self._wait(Place(Waits.CALLING, index), operation)
        builder = CodeBuilder()
        builder.position = operation.position
        _call_spread_on_top(builder, inside.callee)
        builder.tuple(1)
        _call_spread_on_top(builder, native.call_to_wait)
        self._add(builder, operation.handler)
        self._ways_in += self._calling(self.end, operation)
        waiting = self._wait(Place(Waits.INSIDE, index), operation)
        for instruction in waiting:
            instruction.handler = Handler(thrown, inside.depth + 1, lasti=False)
        self._finish_inside(native.call_that_waited, 1, operation, behind)
        thrown.position = operation.position
        self._ways_in.append(thrown)
        self._ways_in += self._calling(self.begin, operation)
        self._finish_inside(native.call_that_fails, 2, operation, behind)
        self._ways_in.append(over)

    def _finish_inside(
        self, function: Callable[..., Any], count: int, operation: Instruction, behind: Instruction
    ) -> None:
        """so many arguments -> what the function gives, with which the generator goes on"""
        builder = CodeBuilder()
        builder.position = operation.position
        builder.tuple(count)
        _call_spread_on_top(builder, function)
        builder.jump(behind)
        self._add(builder, operation.handler)

    def _add(self, builder: CodeBuilder, handler: Handler | None) -> None:
        for instruction in builder.instructions:
            instruction.handler = handler
        self._ways_in += builder.instructions

    def _go_on(self, instruction: Instruction) -> None:
        """Wait before an instruction of the program, then go on there."""
        self._ways_in += self._calling(self.end, instruction)
        self._wait(Place(Waits.BEFORE, instruction.index), instruction)
        self._ways_in += self._calling(native.going_on, instruction)
        builder = CodeBuilder()
        builder.position = instruction.position
        builder.jump(instruction).handler = instruction.handler
        self._ways_in += builder.instructions

    def _wait(self, place: Place, beside: Instruction) -> list[Instruction]:
        """Gives those of its instructions that something may be thrown at."""
        builder = CodeBuilder()
        builder.position = beside.position
        builder.const(PAUSED)
        builder.add("YIELD_VALUE", VERSION.plain_yield, VERSION.plain_yield)
        self.places[id(builder.instructions[-1])] = place
        builder.add("RESUME", 1, 1)
        builder.pop()
        for instruction in builder.instructions:
            instruction.handler = beside.handler
        self._ways_in += builder.instructions
        self._ways_in += self._calling(self.begin, beside)
        return builder.instructions[1:3]

    def _calling(self, function: Callable[[], object], beside: Instruction) -> list[Instruction]:
        builder = CodeBuilder()
        builder.position = beside.position
        builder.const_callee(function)
        builder.call(0)
        builder.pop()
        for instruction in builder.instructions:
            instruction.handler = beside.handler
        return builder.instructions

    def _call(self, function: Callable[[], object], beside: Instruction) -> None:
        self.made.extend(self._calling(function, beside))

    def _moved(self, instruction: Instruction) -> Instruction:
        """The instruction, behind a place that jumps and handlers lead to in its stead."""
        copy = instruction.copy()
        instruction.opname, instruction.arg, instruction.argval = "NOP", None, None
        instruction.flags, instruction.target = 0, None
        self.made.append(instruction)
        return copy

    def _protect(self, way_out: Handler) -> None:
        """Lead exceptions that no handler of the program is for out of the frame by `way_out`."""
        for instruction in self.made:
            if instruction.handler is None:
                instruction.handler = way_out


def _call_spread_on_top(builder: CodeBuilder, function: Callable[..., Any]) -> None:
    """arguments in a tuple -> function(*arguments)"""
    builder.const_callee(function)
    builder.swap(2)
    builder.swap(3)
    builder.call_spread(mapping=False)
