"""Generators and coroutines run their own code, with callees compiled: the frame hook is on between two yields. It is
off while the generator is suspended, and while it delegates to another generator, which has the hook on itself. A
generator's own computations are not captured here."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from stator.base.errors import CompileError
from stator.dynamo.bytecode import BytecodeError, CodeBuilder, Handler, Instruction, assemble, decode

_DELEGATING = ("SEND",)  # `await` and `yield from`
_CALLING = ("CALL", "BEFORE_WITH", "BEFORE_ASYNC_WITH")
_NOT_CALLING = "CALL_INTRINSIC"  # CPython adds one to each generator from 3.12 on; it calls nothing
_LEAVING = ("RETURN_VALUE", "RETURN_CONST")


def calls_something(code: CodeType) -> bool:
    """Whether the code may call a function that could be compiled. (Operators of the program's classes do not
    count.)"""
    names = [instruction.opname for instruction in decode(code)]
    return any(name.startswith(_CALLING) and not name.startswith(_NOT_CALLING) for name in names)


def emit_generator(code: CodeType, begin: Callable[[], object], end: Callable[[], object]) -> CodeType:
    """Code of a generator, coroutine or async generator that calls `begin` when it starts or resumes running, and
    `end` when it is suspended or finished. `begin` may run more than once in a row, and `end` without `begin`. Raises
    CompileError if no bytecode can express it."""
    try:
        steps = _Steps(decode(code), begin, end)
        made = assemble(steps.instructions(), code)
    except BytecodeError as error:
        raise CompileError("dynamo", f"the bytecode of a generator cannot be encoded: {error}") from error
    return made


class _Steps:
    """Writes the code of a generator."""

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
                self._call(self.end, instruction)  # backward jumps lead to the instruction itself
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
        """Move the instruction behind a NOP that takes its place as the target of jumps and handlers."""
        copy = instruction.copy()
        instruction.opname, instruction.arg, instruction.argval = "NOP", None, None
        instruction.flags, instruction.target = 0, None
        self.made.append(instruction)
        return copy

    def _protect(self, leave_handler: Handler) -> None:
        """Route exceptions without a handler of the program to `leave_handler`."""
        for instruction in self.made:
            if instruction.handler is None:
                instruction.handler = leave_handler
