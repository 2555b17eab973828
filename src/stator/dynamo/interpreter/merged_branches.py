"""Branches on sizes that choose the smaller or the larger of two numbers: `if n > 8: n = 8` is `n = min(n, 8)`."""

from __future__ import annotations

from typing import Any

import torch

from stator.dynamo.bytecode import Instruction
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import MISSING, ObjectValue
from stator.dynamo.values.symbolic_numbers import (
    SymbolicNumber,
    is_symbolic,
    truth_for_all_sizes,
)
from stator.prims.layout import always_equal, always_true
from stator.shapes.conditions import Comparison
from stator.shapes.sym_node import to_expression, to_sym_int

from .frame import Frame

_LOADS = frozenset(("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"))
_SUMS = frozenset(("+", "-", "*"))
_FORWARD = "JUMP_FORWARD"

State = tuple[list[Any], dict[str, Value]]
"""The stack and the local variables."""


def merge_branches(frame: Frame, value: Value, jump: Instruction) -> bool:
    """Whether both branches behind the jump only compute numbers, of which one is the smaller or the larger one for all
    sizes. The frame then continues where they meet. `value`: the condition, which the caller took off the stack."""
    if type(value) is not SymbolicNumber or not value.is_known:
        return False
    if frame.now != jump.index or not jump.opname.startswith("POP_JUMP_") or truth_for_all_sizes(value) is not None:
        return False
    margin = _margin(value)
    if margin is None:
        return False
    stack, names, now, pc = list(frame.stack), frame.locals, frame.now, frame.pc
    merged = None
    try:
        merged = _merged(frame, jump, margin, (stack, names))
    finally:  # a branch that cannot be captured breaks the graph at the jump
        frame.now, frame.locals = now, names
        if merged is None:
            frame.stack[:], frame.pc = stack, pc
    if merged is None:
        return False
    frame.stack[:] = merged[0]
    names.update(merged[1])
    return True


def _margin(value: SymbolicNumber) -> Any:
    """An int that is not negative where the condition holds; None for other conditions."""
    comparison = value.condition
    if not isinstance(comparison, Comparison) or comparison.relation != ">=":
        return None
    return to_sym_int(value.symbols.environment, comparison.expr)


def _merged(frame: Frame, jump: Instruction, margin: Any, before: State) -> State | None:
    """The state where the branches meet; `frame.pc` is that place."""
    assert jump.target is not None
    behind = _run(frame, jump.index + 1, jump.target.index, before)
    meeting, there = frame.pc, before
    if behind is not None and meeting != jump.target.index:
        there = _run(frame, jump.target.index, meeting, before)  # type: ignore[assignment]
    frame.stack[:] = before[0]
    if behind is None or there is None or frame.pc != meeting or len(behind[0]) != len(there[0]):
        return None
    jumps_if_true = "_IF_TRUE" in jump.opname
    chosen, other = (there, behind) if jumps_if_true else (behind, there)
    stack = [_choice(frame, margin, *pair) for pair in zip(chosen[0], other[0], strict=True)]
    if chosen[1].keys() != other[1].keys():
        return None
    names = {name: _choice(frame, margin, chosen[1][name], other[1][name]) for name in chosen[1]}
    return None if any(one is MISSING for one in (*stack, *names.values())) else (stack, names)


def _run(frame: Frame, start: int, end: int, before: State) -> State | None:
    """The state behind the instructions from `start`, which ends at `end`, or where a jump ahead of it leads."""
    frame.stack[:], frame.locals, frame.pc = before[0], dict(before[1]), start
    while start <= frame.pc < end:
        instruction = frame.program.instructions[frame.pc]
        frame.now, frame.pc = frame.pc, frame.pc + 1
        if instruction.opname == _FORWARD and frame.pc == end:
            assert instruction.target is not None
            frame.pc = instruction.target.index
            break
        if not _only_computes(frame, instruction):
            return None
        frame.program.handlers[frame.now](frame, instruction)  # type: ignore[misc]
    return list(frame.stack), frame.locals


def _only_computes(frame: Frame, instruction: Instruction) -> bool:
    name = instruction.opname
    if name in _LOADS:
        return name == "LOAD_CONST" or frame.locals.get(instruction.argval) is not None
    if name == "BINARY_OP":
        return instruction.argval in _SUMS and all(map(_is_int, frame.stack[-2:]))
    if name == "LOAD_ATTR":
        return _is_plain_attribute(frame, frame.stack[-1], instruction.argval)
    return name in ("STORE_FAST", "NOP", "CACHE")


def _is_plain_attribute(frame: Frame, owner: Any, name: Any) -> bool:
    """Whether reading this attribute of an object runs no code of the program."""
    if type(owner) is not ObjectValue or type(name) is not str:
        return False
    lookup = frame.context.class_lookup
    plain = lookup(owner.cls, "__getattribute__") is object.__getattribute__ and lookup(owner.cls, name) is MISSING
    return plain and owner.own_attribute(frame.context, name) is not None


def _is_int(value: Any) -> bool:
    if type(value) is SymbolicNumber:
        return value.kind is int
    return isinstance(value, ConstantValue) and type(value.value) is int


def _choice(frame: Frame, margin: Any, chosen: Any, other: Any) -> Any:
    """The value that is `chosen` where the margin is not negative, and `other` elsewhere; MISSING if that is neither
    the smaller nor the larger one for all sizes."""
    if chosen is other:
        return chosen
    if not _is_int(chosen) or not _is_int(other):
        return MISSING
    numbers = frame.context.recorder.numbers
    first, second = numbers.size_of(chosen), numbers.size_of(other)
    if not is_symbolic(first) and not is_symbolic(second) and first != second:
        return MISSING
    if always_equal(first, second):
        return chosen
    for choose, rest in ((torch.sym_min, second - first), (torch.sym_max, first - second)):
        if always_true(margin <= rest) and always_true(rest <= margin + 1):
            return numbers.value(to_expression(choose(first, second)))  # type: ignore[no-any-return]
    return MISSING
