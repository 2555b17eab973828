"""Data flow over all paths: the depth of the value stack, and the reachable instructions."""

from __future__ import annotations

import dis
import opcode
from collections.abc import Sequence

from .instruction import Instruction

ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS", "INTERPRETER_EXIT"})
NAMES_A_PLACE = frozenset({"END_ASYNC_FOR"})  # from 3.14 on its operand names a place, but it does not jump
UNCONDITIONAL = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


def stack_effect(instruction: Instruction, operand: int, *, jump: bool) -> int:
    """The change of depth, with or without the jump. `operand` is the encoded one."""
    if instruction.opname == "RETURN_GENERATOR":  # the caller gets the generator; the value sent to start it is pushed
        return 1
    number = opcode.opmap[instruction.opname]
    return dis.stack_effect(number, operand if number >= opcode.HAVE_ARGUMENT else None, jump=jump)


def stack_depths(instructions: Sequence[Instruction], operands: Sequence[int]) -> tuple[dict[int, int], int]:
    """({id(instruction): depth before it}, greatest depth). Unreachable instructions are left out."""
    place = {id(instruction): index for index, instruction in enumerate(instructions)}
    depths: dict[int, int] = {}
    deepest = 0
    work: list[tuple[int, int]] = [(0, 0)]
    while work:
        index, depth = work.pop()
        while index < len(instructions):
            instruction = instructions[index]
            known = depths.get(id(instruction), -1)
            if known >= depth:
                break
            depths[id(instruction)] = depth
            deepest = max(deepest, depth)
            handler = instruction.handler
            if handler is not None:
                work.append((place[id(handler.target)], handler.depth + handler.lasti + 1))
            if instruction.target is not None and instruction.opname not in NAMES_A_PLACE:
                after = depth + stack_effect(instruction, operands[index], jump=True)
                deepest = max(deepest, after)
                work.append((place[id(instruction.target)], after))
                if instruction.opname in UNCONDITIONAL:
                    break
            if instruction.opname in ENDS:
                break
            depth += stack_effect(instruction, operands[index], jump=False)
            deepest = max(deepest, depth)
            index += 1
    return depths, deepest


def reachable(instructions: Sequence[Instruction], entry: Instruction) -> list[Instruction]:
    """The instructions that can run from `entry` on, exception handlers included, in code order."""
    place = {id(instruction): index for index, instruction in enumerate(instructions)}
    found: set[int] = set()
    work = [place[id(entry)]]
    while work:
        index = work.pop()
        while index < len(instructions) and index not in found:
            found.add(index)
            instruction = instructions[index]
            if instruction.handler is not None:
                work.append(place[id(instruction.handler.target)])
            if instruction.target is not None:
                work.append(place[id(instruction.target)])
            if instruction.opname in ENDS or instruction.opname in UNCONDITIONAL:
                break
            index += 1
    return [instructions[index] for index in sorted(found)]
