"""Branches of `and` and `or` whose rest is known: `n > 1 and flag` is False for each `n` where `flag` is False."""

from __future__ import annotations

from stator.dynamo.bytecode import Instruction
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber

from .frame import Frame

_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
_QUIET = frozenset(("LOAD_CONST", "IS_OP", "NOP", "CACHE", "NOT_TAKEN", "COPY", "POP_TOP"))
_ON_CONSTANTS = ("POP_JUMP_", "JUMP_IF_", "TO_BOOL", "UNARY_NOT")


def either_way(frame: Frame, value: Value, jump: Instruction) -> bool | None:
    """The truth with which the program does not jump, if known values then lead it to the jump's target with an equal
    stack, by instructions without effects; else None. `value`: the condition, which the caller took off the stack."""
    assert jump.target is not None
    target, jumps_if = jump.target.index, "_IF_TRUE" in jump.opname
    before = list(frame.stack), frame.pc, frame.now
    copied = bool(frame.stack) and frame.stack[-1] is value  # since 3.12
    keeps = copied or jump.opname.startswith("JUMP_IF_")
    if keeps and (type(value) is not SymbolicNumber or value.kind is not bool):
        return None
    depth = len(frame.stack) - copied
    frame.pc = jump.index + 1
    try:
        while jump.index < frame.pc < target:
            instruction = frame.program.instructions[frame.pc]
            if not _is_quiet(frame, instruction):
                return None
            frame.now, frame.pc = frame.pc, frame.pc + 1
            frame.program.handlers[frame.now](frame, instruction)  # type: ignore[misc]
        rest = frame.stack[depth:]
        equal = all(isinstance(one, ConstantValue) and one.value is jumps_if for one in rest)
        return not jumps_if if frame.pc == target and len(rest) == keeps and equal else None
    finally:
        frame.stack[:], frame.pc, frame.now = before


def _is_quiet(frame: Frame, instruction: Instruction) -> bool:
    name = instruction.opname
    if name in _LOADS:
        return frame.locals.get(instruction.argval) is not None
    if name.startswith(_ON_CONSTANTS):
        return name.endswith("NONE") or isinstance(frame.stack[-1], ConstantValue)
    return name in _QUIET
