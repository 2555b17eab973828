"""Branches of `and` and `or` whose rest is known: `n > 1 and flag` is False for each `n` where `flag` is False. The
rest may call functions that do nothing but ask a question with a constant answer, such as `is_compiling()`.

Where both parts of `n == 1 or length == n` hold, the version relies on the second one: the first allows a single `n`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stator.dynamo.bytecode import Instruction
from stator.dynamo.bytecode.arithmetic import COMPARISONS
from stator.dynamo.ir.prepared_code import prepare_code
from stator.dynamo.values.base import CaptureContext, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.modules import PythonModuleValue
from stator.dynamo.values.symbolic_numbers import (
    NUMBERS,
    SymbolicNumber,
    truth_for_all_sizes,
)
from stator.shapes.conditions import negate, only_value

from .calling import is_followed, questions
from .frame import Frame

_LOADS = frozenset(("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"))
_QUIET = frozenset(
    ("LOAD_CONST", "LOAD_GLOBAL", "PUSH_NULL", "PRECALL", "IS_OP", "NOP", "CACHE", "NOT_TAKEN", "COPY", "POP_TOP")
)
_ON_CONSTANTS = ("POP_JUMP_", "JUMP_IF_", "TO_BOOL", "UNARY_NOT")
_IN_FUNCTIONS = frozenset(("RESUME", "STORE_FAST", "IMPORT_NAME", "RETURN_VALUE", "RETURN_CONST"))
_DEEPEST = 4  # calls in one another


def either_way(frame: Frame, value: SymbolicNumber, jump: Instruction) -> bool | None:
    """A truth with which the program goes on as with the other one, if known values lead it to the jump's target with
    an equal stack, by instructions without effects; else None. `value`: the condition, which the caller took off the
    stack. The condition stays on the stack where it is the result itself, as in `n > 1 and True`."""
    found = _either_way(frame, value, jump, None)
    if found is None and _allows_one_number(value, "_IF_TRUE" in jump.opname):
        facts: list[SymbolicNumber] = []
        found = _either_way(frame, value, jump, facts)
        if found is not None:
            for fact in facts:
                frame.context.truth(fact)
    return found


def _allows_one_number(value: SymbolicNumber, wanted: bool) -> bool:
    """Whether this is a condition with the wanted truth in this call, as for a single value of a symbol alone."""
    if value.kind is not bool or value.example is not wanted or truth_for_all_sizes(value) is not None:
        return False
    return only_value(value.condition if wanted else negate(value.condition)) is not None


def _either_way(
    frame: Frame, value: SymbolicNumber, jump: Instruction, facts: list[SymbolicNumber] | None
) -> bool | None:
    """facts: if not None, examples answer further questions, which are collected here."""
    assert jump.target is not None
    jumps_if = "_IF_TRUE" in jump.opname
    before = list(frame.stack), frame.pc, frame.now
    copied = _is_copied(frame.program.instructions, jump.index)
    keeps = copied or jump.opname.startswith("JUMP_IF_")
    result = frame.stack[-1] if copied else value
    if keeps and (facts is not None or type(result) is not SymbolicNumber or result.kind is not bool):
        return None
    depth = len(frame.stack) - copied
    frame.pc = jump.index + 1
    try:
        if not _arrives(frame, jump, depth, facts):
            return None
        rest = frame.stack[depth:]
        if len(rest) != keeps or not all(isinstance(one, ConstantValue) and type(one.value) is bool for one in rest):
            return None
        return jumps_if if keeps and rest[0].value is not jumps_if else not jumps_if  # type: ignore[attr-defined]
    finally:
        frame.stack[:], frame.pc, frame.now = before


def _is_copied(instructions: Sequence[Instruction], jump: int) -> bool:
    """Whether the condition of this jump also stays on the stack, since 3.12; 3.13 takes the truth of the copy."""
    before = jump - 2 if instructions[jump - 1].opname == "TO_BOOL" else jump - 1
    return before >= 0 and instructions[before].opname == "COPY" and instructions[before].arg == 1


def _arrives(frame: Frame, jump: Instruction, depth: int, facts: list[SymbolicNumber] | None) -> bool:
    """Whether all paths behind the jump lead to its target. A jump by an unknown truth may go there, with no values
    above `depth`; then the path behind it remains. With `facts`, other unknown truths are those of the examples."""
    target = jump.target.index  # type: ignore[union-attr]
    instructions, handlers = frame.program.instructions, frame.program.handlers
    while jump.index < frame.pc < target:
        instruction = instructions[frame.pc]
        frame.now, frame.pc = frame.pc, frame.pc + 1
        if _is_quiet(frame, instruction):
            handlers[frame.now](frame, instruction)  # type: ignore[misc]
        elif instruction.opname == "CALL":
            if not _calls_question(frame, instruction, _DEEPEST):
                return False
        elif instruction.opname == "COMPARE_OP" and all(map(_is_size, frame.stack[-2:])):
            right, left = frame.stack.pop(), frame.stack.pop()
            frame.stack.append(frame.context.compare(COMPARISONS[instruction.argval], left, right))
        elif not instruction.opname.startswith(("POP_JUMP_", "TO_BOOL")) or type(frame.stack[-1]) is not SymbolicNumber:
            return False
        elif instruction.opname != "TO_BOOL":
            asked: SymbolicNumber = frame.stack.pop()  # type: ignore[assignment]
            truth = truth_for_all_sizes(asked)
            if truth is None and facts is not None and asked.is_known:
                facts.append(asked)
                truth = bool(asked.example)
            elif truth is None and not (instruction.target is jump.target and len(frame.stack) == depth):
                return False
            if truth is ("_IF_TRUE" in instruction.opname):
                frame.pc = instruction.target.index  # type: ignore[union-attr]
    return frame.pc == target


def _is_quiet(frame: Frame, instruction: Instruction) -> bool:
    name = instruction.opname
    if name in _LOADS:
        names = (instruction.argval,) if isinstance(instruction.argval, str) else instruction.argval
        return all(frame.locals.get(one) is not None for one in names)
    if name == "LOAD_DEREF":
        return frame.cells[instruction.argval].content is not None
    if name.startswith(_ON_CONSTANTS):
        return name.endswith("NONE") or isinstance(frame.stack[-1], ConstantValue)
    if name in ("LOAD_ATTR", "LOAD_METHOD"):
        owner = frame.stack[-1]
        return type(owner) is PythonModuleValue and instruction.argval in vars(owner.module)
    return name in _QUIET


def _calls_question(frame: Frame, instruction: Instruction, depth: int) -> bool:
    """Whether this call has a constant answer and no effect. The answer then stands on the stack."""
    callee = [one for one in frame.stack[-2:] if one is not None]
    if instruction.arg or len(callee) != 1:
        return False
    answer = _answer(frame.context, callee[0], depth)
    if answer is None:
        return False
    frame.stack[-2:] = [answer]
    return True


def _answer(context: CaptureContext, function: Value, depth: int) -> ConstantValue | None:
    """The constant that a function without parameters returns, if its code only asks questions; else None."""
    if type(function) is not FunctionValue or function.fn is None or not depth:
        return None
    if function.fn in questions:
        return function.call(context, [], {})  # type: ignore[return-value]
    if not is_followed(function.fn) or function.code.co_argcount or function.code.co_kwonlyargcount:
        return None
    program = prepare_code(function.code)
    frame = Frame(context, program, function.scope, {}, function.cells(context), function.qualname)
    with frame.entered():
        while frame.result is None:
            instruction = program.instructions[frame.pc]
            frame.now, frame.pc = frame.pc, frame.pc + 1
            if instruction.opname == "CALL":
                if not _calls_question(frame, instruction, depth - 1):
                    return None
            elif _is_quiet(frame, instruction) or _is_quiet_in_function(instruction):
                program.handlers[frame.now](frame, instruction)  # type: ignore[misc]
            else:
                return None
    return frame.result if isinstance(frame.result, ConstantValue) else None


def _is_quiet_in_function(instruction: Instruction) -> bool:
    if instruction.opname == "IMPORT_NAME":
        return instruction.argval in sys.modules
    return instruction.opname in _IN_FUNCTIONS


def _is_size(value: Value) -> bool:
    """Whether comparisons of this number lay no guard."""
    if type(value) is SymbolicNumber:
        return value.kind in NUMBERS
    return isinstance(value, ConstantValue) and type(value.value) in NUMBERS
