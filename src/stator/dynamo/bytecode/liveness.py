"""Liveness of local variables: which may still be read from a point on, and which are bound on every path to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .instruction import Instruction
from .stack import ENDS, UNCONDITIONAL

_STORES: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "STORE_FAST": lambda name: (name,),
    "STORE_FAST_LOAD_FAST": lambda names: names[:1],
    "STORE_FAST_STORE_FAST": tuple,
}
_READS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "LOAD_CLOSURE", "DELETE_FAST"})


def stored_variables(instruction: Instruction) -> tuple[str, ...]:
    """The names of the variables that an instruction stores, that of the top of the stack first."""
    return _STORES.get(instruction.opname, lambda operand: ())(instruction.argval)


def live_locals(instructions: Sequence[Instruction], index: int) -> frozenset[str]:
    """Names of variables that are read on some path before they are assigned, from instruction `index` on. Deleting a
    variable counts as a read, because deleting an unbound variable raises."""
    place = {id(instruction): number for number, instruction in enumerate(instructions)}
    live: list[frozenset[str]] = [frozenset()] * len(instructions)
    changed = True
    while changed:  # backward passes until nothing is added; nested loops need more passes
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            instruction = instructions[number]
            after = _after(instruction, number, live, place)
            before = _before(instruction, after)
            if instruction.handler is not None:
                before |= live[place[id(instruction.handler.target)]]
            if before != live[number]:
                live[number] = before
                changed = True
    return live[index]


def _after(
    instruction: Instruction, number: int, live: Sequence[frozenset[str]], place: dict[int, int]
) -> frozenset[str]:
    after: frozenset[str] = frozenset()
    if instruction.opname not in ENDS and instruction.opname not in UNCONDITIONAL and number + 1 < len(live):
        after = live[number + 1]
    if instruction.target is not None:
        after |= live[place[id(instruction.target)]]
    return after


def _before(instruction: Instruction, after: frozenset[str]) -> frozenset[str]:
    name, operand = instruction.opname, instruction.argval
    if name in _READS:
        return after | {operand}
    if name == "LOAD_FAST_LOAD_FAST":
        return after | set(operand)
    if name == "STORE_FAST_LOAD_FAST":
        after |= {operand[1]}
    return after.difference(stored_variables(instruction))


def always_bound(instructions: Sequence[Instruction], index: int, parameters: frozenset[str]) -> frozenset[str]:
    """Names of variables that are bound before instruction `index`, on every path from the start of the code."""
    place = {id(instruction): number for number, instruction in enumerate(instructions)}
    # inlined comprehensions restore their variables to the previous state, bound or unbound
    cleared = {instruction.argval for instruction in instructions if instruction.opname == "LOAD_FAST_AND_CLEAR"}
    bound: dict[int, frozenset[str]] = {}
    work = [(0, parameters - cleared)]
    while work:
        number, names = work.pop()
        known = bound.get(number)
        names = names if known is None else names & known
        if names == known:
            continue
        bound[number] = names
        instruction = instructions[number]
        after = _bound_after(instruction, names) - cleared
        if instruction.handler is not None:
            work.append((place[id(instruction.handler.target)], names & after))
        if instruction.target is not None:
            work.append((place[id(instruction.target)], after))
        if (
            instruction.opname not in ENDS
            and instruction.opname not in UNCONDITIONAL
            and number + 1 < len(instructions)
        ):
            work.append((number + 1, after))
    return bound.get(index, frozenset())


def _bound_after(instruction: Instruction, names: frozenset[str]) -> frozenset[str]:
    """A variable that was loaded without an error is bound, too."""
    name, operand = instruction.opname, instruction.argval
    if name == "DELETE_FAST":
        return names - {operand}
    if name in ("LOAD_FAST", "LOAD_FAST_CHECK"):
        return names | {operand}
    if name in ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST"):
        return names | set(operand)
    return names.union(stored_variables(instruction))
