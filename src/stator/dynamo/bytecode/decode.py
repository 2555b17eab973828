"""Code object -> list of instructions, with jump targets and exception handlers resolved to instructions."""

from __future__ import annotations

import dis
import opcode
from collections.abc import Callable
from types import CodeType
from typing import Any

from .instruction import Handler, Instruction, leads_back
from .version import BINARY_SYMBOLS, CACHES, COMPARE_SYMBOLS, OPERAND_KINDS, VERSION

_EXTENDED_ARG = opcode.opmap["EXTENDED_ARG"]
_Meaning = Callable[[int, "_Tables"], tuple[Any, int]]


class _Tables:
    """The tables of a code object that operands index."""

    __slots__ = ("consts", "first_free", "names", "variables")

    def __init__(self, code: CodeType) -> None:
        self.consts = code.co_consts
        self.names = code.co_names
        cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
        self.variables = code.co_varnames + cells + code.co_freevars
        self.first_free = len(code.co_varnames) + len(cells)


def decode(code: CodeType) -> list[Instruction]:
    """Every instruction of `code` in order, unspecialized, without EXTENDED_ARG and CACHE entries."""
    tables = _Tables(code)
    data = code.co_code
    positions = list(code.co_positions())
    instructions: list[Instruction] = []
    at_unit: dict[int, Instruction] = {}  # code unit (of the first prefix) -> instruction
    jumps: list[tuple[Instruction, int]] = []
    starts: list[int] = []
    unit, count, prefix, start = 0, len(data) // 2, 0, 0
    while unit < count:
        number, operand = data[2 * unit], data[2 * unit + 1] | prefix
        if number == _EXTENDED_ARG:
            prefix = operand << 8
            unit += 1
            continue
        instruction, meaning = _plain(number, operand, tables)
        instruction.position = positions[unit]
        instruction.index = len(instructions)
        end = unit + 1 + CACHES[number]
        if meaning == "jump":
            jumps.append((instruction, end - operand if leads_back(instruction) else end + operand))
        at_unit[start] = instruction
        starts.append(start)
        instructions.append(instruction)
        unit, prefix, start = end, 0, end
    for instruction, destination in jumps:
        instruction.target = at_unit[destination]
    _attach_handlers(code, instructions, starts, at_unit)
    return instructions


def _plain(number: int, operand: int, tables: _Tables) -> tuple[Instruction, str | None]:
    name = opcode.opname[number]
    name = VERSION.borrowing.get(name, name)
    if number < opcode.HAVE_ARGUMENT:
        return Instruction(name), None
    kind = OPERAND_KINDS.get(name)
    if kind is None:
        return Instruction(name, operand, operand), None
    meaning = _MEANINGS.get(kind)
    if meaning is None:
        return Instruction(name, operand, None), kind
    bits = VERSION.flag_bits.get(name, 0)
    argval, flags = meaning(operand >> bits, tables)
    if bits:
        flags = operand & ((1 << bits) - 1)
    if name == VERSION.closure_load and operand >= tables.first_free:
        name = "LOAD_CLOSURE"
    return Instruction(name, operand, argval, flags), kind


def _compare(operand: int, tables: _Tables) -> tuple[Any, int]:
    shift = VERSION.compare_shift
    return COMPARE_SYMBOLS[operand >> shift], operand & ((1 << shift) - 1)


_MEANINGS: dict[str, _Meaning] = {
    "const": lambda index, tables: (tables.consts[index], 0),
    "name": lambda index, tables: (tables.names[index], 0),
    "local": lambda index, tables: (tables.variables[index], 0),
    "cell": lambda index, tables: (tables.variables[index], 0),
    "pair": lambda index, tables: ((tables.variables[index >> 4], tables.variables[index & 15]), 0),
    "binary": lambda index, tables: (BINARY_SYMBOLS[index], 0),
    "compare": _compare,
}


def _attach_handlers(
    code: CodeType, instructions: list[Instruction], starts: list[int], at_unit: dict[int, Instruction]
) -> None:
    shared: dict[tuple[int, int, bool], Handler] = {}
    position = 0
    for begin, end, target, depth, lasti in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        key = (target, depth, lasti)
        handler = shared.setdefault(key, Handler(at_unit[target // 2], depth, lasti))
        while position < len(instructions) and 2 * starts[position] < begin:
            position += 1
        while position < len(instructions) and 2 * starts[position] < end:
            instructions[position].handler = handler
            position += 1
