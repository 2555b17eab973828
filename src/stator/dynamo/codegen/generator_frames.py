"""Generators and coroutines that run as they are: their own code, in which what they call is compiled. Between two
yields the frame hook is on; it is off while they wait, and while another generator works for them, which sees to
itself. What a generator computes by itself is not captured here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from stator.base.errors import CompileError
from stator.dynamo.bytecode import BytecodeError, CodeBuilder, Handler, Instruction, assemble, decode
from stator.dynamo.ir.suspension_points import note_suspension_points

_DELEGATING = ("SEND",)  # `await` and `yield from`
_CALLING = ("CALL", "BEFORE_WITH", "BEFORE_ASYNC_WITH")
_NOT_CALLING = "CALL_INTRINSIC"  # the interpreter's own work: from 3.12 on each generator has one
_LEAVING = ("RETURN_VALUE", "RETURN_CONST")


def calls_something(code: CodeType) -> bool:
    """Whether there is anything in this code that could be compiled when it runs. (Operators of classes of the program
    are not looked for.)"""
    names = [instruction.opname for instruction in decode(code)]
    return any(name.startswith(_CALLING) and not name.startswith(_NOT_CALLING) for name in names)


def emit_generator(code: CodeType, begin: Callable[[], object], end: Callable[[], object]) -> CodeType:
    """Code of a generator, coroutine or async generator that calls `begin` where a step begins and `end` where it ends.
    `begin` may be called more than once in a step, and `end` outside of one.

    Raises CompileError for what cannot be expressed as bytecode.
    """
    try:
        steps = _Steps(decode(code), begin, end)
        made = assemble(steps.instructions(), code)
    except BytecodeError as error:
        raise CompileError("dynamo", f"the code of a generator cannot be encoded: {error}") from error
    note_suspension_points(made, code, steps.made)
    return made


class _Steps:
    """Writes the code of one generator."""

    def __init__(self, original: list[Instruction], begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.original = original
        self.begin, self.end = begin, end
        self.made: list[Instruction] = []

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

    def _protect(self, leave_handler: Handler) -> None:
        """Lead exceptions that no handler of the program is for out of the frame by `leave_handler`."""
        for instruction in self.made:
            if instruction.handler is None:
                instruction.handler = leave_handler
