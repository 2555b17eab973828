"""Branches that only choose an int: `if n > 8: n = 8` and `m = k if k < n else n` are the smaller, or the larger, of
two numbers, where this is so for all sizes. Then both sides of the branch have one version. The ways of a branch meet
where one leads into the other, or where both return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.dynamo.bytecode import Instruction, stored_variables
from stator.dynamo.values.base import Lazy, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.number_arithmetic import computed
from stator.dynamo.values.objects import MISSING, ObjectValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, truth_for_all_sizes

from .frame import Frame

_VARIABLES = frozenset(
    (
        *("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"),
        *("STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"),
    )
)
_EXACT = frozenset(("+", "-", "*", "+=", "-=", "*="))  # functions of ints without facts
_RETURNS = frozenset(("RETURN_VALUE", "RETURN_CONST"))
_QUIET = frozenset(("NOP", "LOAD_CONST", "LOAD_SMALL_INT"))


def chooses_number(frame: Frame, value: Value, jump: Instruction) -> bool:
    """Whether the two ways behind a forward jump do nothing but compute ints, and meet, each with the smaller or each
    with the larger one of two. Then the frame goes on where they meet. The caller took the condition off the
    stack."""
    assert jump.target is not None
    end = jump.target.index
    if type(value) is not SymbolicNumber or end <= jump.index or truth_for_all_sizes(value) is not None:
        return False
    stack, names, here = list(frame.stack), frame.locals, (frame.pc, frame.now)
    ways: list[tuple[list[Any], dict[str, Value]]] = []
    instructions = frame.program.instructions
    ends, met = _ends(instructions, end), end
    try:
        for begin in (jump.index + 1, end):
            frame.stack[:], frame.locals = stack, dict(names)
            meeting = _follow(frame, begin, ends[0])
            if meeting is None:
                return False
            if instructions[meeting].opname == "RETURN_CONST":
                frame.stack.append(frame.context.constant(instructions[meeting].argval))
            else:
                met = meeting
            ways.append((list(frame.stack), frame.locals))
            ends = ends[1:] or [meeting]
    finally:
        frame.stack[:], frame.locals, (frame.pc, frame.now) = stack, names, here
    if "_IF_TRUE" in jump.opname:
        ways.reverse()
    (values, variables), (others, other_variables) = ways
    if instructions[met].opname == "RETURN_VALUE":
        variables, other_variables = {}, {}
    if len(values) != len(others) or variables.keys() != other_variables.keys():
        return False
    merged = [_merged(frame, value, *pair) for pair in zip(values, others, strict=True)]
    merged_names = {name: _merged(frame, value, one, other_variables[name]) for name, one in variables.items()}
    if NotImplemented in merged or NotImplemented in merged_names.values():
        return False
    frame.stack[:], frame.pc = merged, met
    frame.locals.update(merged_names)
    return True


def _ends(instructions: Sequence[Instruction], end: int) -> list[int]:
    """Where both ways return, if the first does so before `end`: the place in each; otherwise `end`. Since CPython 3.12
    a short end of a function is copied into the ways that lead to it; then the places are where the copies begin."""
    first, second = end - 1, end
    while second < len(instructions) - 1 and instructions[second].opname not in _RETURNS:
        second += 1
    returns = {instructions[first].opname, instructions[second].opname}
    if not returns <= _RETURNS or "RETURN_VALUE" not in returns:
        return [end]
    while second > end and _is_copy(instructions[first - 1], instructions[second - 1]):
        first, second = first - 1, second - 1
    return [first, second]


def _is_copy(one: Instruction, other: Instruction) -> bool:
    if one.target is not None or one.position != other.position:
        return False
    return (one.opname, one.argval, one.flags) == (other.opname, other.argval, other.flags)


def _follow(frame: Frame, begin: int, end: int) -> int | None:
    """Where the way from `begin` leads that ends before `end`; None if it does more than compute ints."""
    frame.pc = begin
    while frame.pc < end:
        instruction = frame.program.instructions[frame.pc]
        if instruction.opname == "JUMP_FORWARD" and frame.pc + 1 == end:
            return instruction.target.index  # type: ignore[union-attr]
        frame.now, frame.pc = frame.pc, frame.pc + 1
        if not _computes(frame, instruction):
            return None
    return frame.pc if frame.pc == end else None


def _computes(frame: Frame, instruction: Instruction) -> bool:
    """Run an instruction that loads, computes or stores an int, and has no other effect. False for others."""
    name, stack = instruction.opname, frame.stack
    if name == "LOAD_ATTR":
        owner = stack[-1]
        if not isinstance(owner, ObjectValue) or instruction.flags & 1:
            return False
        plain = frame.context.class_lookup(owner.cls, "__getattribute__") is object.__getattribute__
        if not plain or frame.context.class_lookup(owner.cls, instruction.argval) is not MISSING:
            return False
        found = owner.own_attribute(frame.context, instruction.argval)
        if found is None:
            return False
        stack[-1] = found.realize(frame.context) if type(found) is Lazy else found
        return _is_int(stack[-1])
    if name == "BINARY_OP":
        allowed = instruction.argval in _EXACT and all(map(_is_int, stack[-2:]))
    elif name == "UNARY_NEGATIVE":
        allowed = _is_int(stack[-1])
    else:
        allowed = name in _QUIET or (name in _VARIABLES and _moves_ints(frame, instruction))
    if allowed:
        frame.program.handlers[frame.now](frame, instruction)  # type: ignore[misc]
    return allowed


def _moves_ints(frame: Frame, instruction: Instruction) -> bool:
    """Whether this stores only ints, in variables that have none or hold ints, and loads only bound variables."""
    stored = stored_variables(instruction)
    for variable, value in zip(stored, reversed(frame.stack), strict=False):
        if not _is_int(value) or variable in frame.cells or not _is_int(frame.locals.get(variable, value)):
            return False
    operand = instruction.argval
    used = operand if type(operand) is tuple else (operand,)
    return all(variable in stored or frame.locals.get(variable) is not None for variable in used)


def _is_int(value: Any) -> bool:
    if type(value) is SymbolicNumber:
        return value.kind is int
    return isinstance(value, ConstantValue) and type(value.value) is int


def _merged(frame: Frame, condition: SymbolicNumber, one: Any, other: Any) -> Any:
    """`one if condition else other`; NotImplemented if this is no least or greatest number."""
    if one is other:
        return one
    if not _is_int(one) or not _is_int(other):
        return NotImplemented
    operands = [each.expression if type(each) is SymbolicNumber else each.value for each in (one, other)]
    if operands[0] == operands[1]:
        return one
    function = condition.symbols.environment.extremum(condition.condition, *operands)
    made = None if function is None else computed(frame.context, function, [one, other])
    return NotImplemented if made is None else made
