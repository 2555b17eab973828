"""Branches of `and` and `or` whose rest is known: `n > 1 and flag` is False for each `n` where `flag` is False."""

from __future__ import annotations

from stator.dynamo.bytecode import Instruction
from stator.dynamo.bytecode.arithmetic import COMPARISONS
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.symbolic_numbers import (
    NUMBERS,
    FromSizes,
    SymbolicNumber,
    is_computed_by_the_graph,
    truth_for_all_sizes,
)

from .frame import Frame

_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
_QUIET = frozenset(("LOAD_CONST", "IS_OP", "NOP", "CACHE", "NOT_TAKEN", "COPY", "POP_TOP"))
_ON_CONSTANTS = ("POP_JUMP_", "JUMP_IF_", "TO_BOOL", "UNARY_NOT")


def either_way(frame: Frame, value: Value, jump: Instruction) -> bool | None:
    """A truth with which the program goes on as with the other one, if known values lead it to the jump's target with
    an equal stack, by instructions without effects; else None. `value`: the condition, which the caller took off the
    stack. The condition stays on the stack where it is the result itself, as in `n > 1 and True`."""
    assert jump.target is not None
    jumps_if = "_IF_TRUE" in jump.opname
    before = list(frame.stack), frame.pc, frame.now
    copied = bool(frame.stack) and frame.stack[-1] is value  # since 3.12
    keeps = copied or jump.opname.startswith("JUMP_IF_")
    if keeps and (type(value) is not SymbolicNumber or value.kind is not bool):
        return None
    depth = len(frame.stack) - copied
    frame.pc = jump.index + 1
    try:
        if not _arrives(frame, jump, depth):
            return None
        rest = frame.stack[depth:]
        if len(rest) != keeps or not all(isinstance(one, ConstantValue) and type(one.value) is bool for one in rest):
            return None
        return jumps_if if keeps and rest[0].value is not jumps_if else not jumps_if  # type: ignore[attr-defined]
    finally:
        frame.stack[:], frame.pc, frame.now = before


def _arrives(frame: Frame, jump: Instruction, depth: int) -> bool:
    """Whether all paths behind the jump lead to its target. A jump by an unknown truth may go there, with no values
    above `depth`; then the path behind it remains."""
    target = jump.target.index  # type: ignore[union-attr]
    instructions, handlers = frame.program.instructions, frame.program.handlers
    while jump.index < frame.pc < target:
        instruction = instructions[frame.pc]
        frame.now, frame.pc = frame.pc, frame.pc + 1
        if _is_quiet(frame, instruction):
            handlers[frame.now](frame, instruction)  # type: ignore[misc]
        elif instruction.opname == "COMPARE_OP" and all(map(_is_size, frame.stack[-2:])):
            right, left = frame.stack.pop(), frame.stack.pop()
            frame.stack.append(frame.context.compare(COMPARISONS[instruction.argval], left, right))
        elif not instruction.opname.startswith(("POP_JUMP_", "TO_BOOL")) or not is_computed_by_the_graph(
            frame.stack[-1]
        ):
            return False
        elif instruction.opname != "TO_BOOL":
            truth = truth_for_all_sizes(frame.stack.pop())  # type: ignore[arg-type]
            if truth is None and not (instruction.target is jump.target and len(frame.stack) == depth):
                return False
            if truth is ("_IF_TRUE" in instruction.opname):
                frame.pc = instruction.target.index  # type: ignore[union-attr]
    return frame.pc == target


def _is_quiet(frame: Frame, instruction: Instruction) -> bool:
    name = instruction.opname
    if name in _LOADS:
        return frame.locals.get(instruction.argval) is not None
    if name.startswith(_ON_CONSTANTS):
        return name.endswith("NONE") or isinstance(frame.stack[-1], ConstantValue)
    return name in _QUIET


def _is_size(value: Value) -> bool:
    """Whether comparisons of this number lay no guard."""
    if type(value) is SymbolicNumber:
        return type(value.origin) is FromSizes
    return isinstance(value, ConstantValue) and type(value.value) in NUMBERS
