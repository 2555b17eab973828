"""Instructions that only rearrange the stack, or that do nothing during a capture."""

from __future__ import annotations

from stator.dynamo.bytecode import Instruction
from stator.dynamo.graph.finalizers import check_variable
from stator.dynamo.interpreter.frame import Frame
from stator.dynamo.ir.prepared_code import opcode, pushes


@opcode("NOP", "RESUME", "CACHE", "PRECALL", "EXTENDED_ARG", "GEN_START", "COPY_FREE_VARS", "NOT_TAKEN", "TO_BOOL_NOP")
def nothing(frame: Frame, instruction: Instruction) -> None:
    pass


@opcode("POP_TOP", "END_FOR_POP")
def pop_top(frame: Frame, instruction: Instruction) -> None:
    gone = frame.stack.pop()
    if frame.program.resumption is not None:
        check_variable(frame, gone)


@opcode("SWAP")
def swap(frame: Frame, instruction: Instruction) -> None:
    stack, at = frame.stack, -instruction.arg  # type: ignore[operator]
    stack[at], stack[-1] = stack[-1], stack[at]


pushes({"PUSH_NULL": lambda frame, at: None, "COPY": lambda frame, at: frame.stack[-at.arg]})
