"""List of instructions -> code object: operand tables, jump distances, exception table, line table, stack size."""

from __future__ import annotations

import opcode
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

from .instruction import Handler, Instruction, Position, leads_back
from .stack import stack_depths
from .version import BINARY_SYMBOLS, CACHES, COMPARE_SYMBOLS, FORWARD_TWINS, OPERAND_KINDS, VERSION

_EXTENDED_ARG = opcode.opmap["EXTENDED_ARG"]


class BytecodeError(ValueError):
    """The instructions cannot be encoded: a defect in their generation."""


def assemble(instructions: Sequence[Instruction], template: CodeType, **changes: Any) -> CodeType:
    """A code object like `template` with these instructions.

    `changes` are fields for `code.replace`, e.g. co_varnames with co_nlocals. Constants and names that the template
    lacks are added to its tables, so an unchanged operand keeps its index. Jumps and handlers refer to instructions in
    the list. Jumps may change direction where the version has an instruction for it; otherwise BytecodeError.
    """
    header = template.replace(**changes) if changes else template
    tables = OperandTables(header)
    _load_cells(instructions, tables)
    if VERSION.pair_operands:
        instructions = _split_pairs(instructions, tables)
    _direct_jumps(instructions)
    operands = [_operand(instruction, tables) for instruction in instructions]
    starts, end = _place(instructions, operands)
    _, depth = stack_depths(instructions, operands)
    return header.replace(
        co_code=_encode(instructions, operands),
        co_consts=tuple(tables.consts),
        co_names=tuple(tables.names),
        co_stacksize=max(depth, 1),
        co_exceptiontable=_exception_table(instructions, starts, end),
        co_linetable=_line_table(instructions, starts, end, header.co_firstlineno),
    )


class OperandTables:
    """Finds the operand of an instruction from its meaning, adding constants and names when they are new."""

    def __init__(self, code: CodeType) -> None:
        self.consts: list[Any] = list(code.co_consts)
        self.names: list[str] = list(code.co_names)
        cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
        self.variables = code.co_varnames + cells + code.co_freevars
        self._const_index = {id(value): index for index, value in enumerate(self.consts)}
        self._name_index = {name: index for index, name in enumerate(self.names)}
        self._local_index = {name: index for index, name in reversed(list(enumerate(self.variables)))}
        self._cell_index = dict(self._local_index)
        first_free = len(code.co_varnames) + len(cells)
        # a free variable may have the name of a local (of an inlined comprehension), never that of a cell
        self._cell_index.update((name, first_free + i) for i, name in enumerate(code.co_freevars))

    def index(self, kind: str, instruction: Instruction, hint: int | None) -> int:
        return getattr(self, "_" + kind)(instruction, hint)

    def _const(self, instruction: Instruction, hint: int | None) -> int:
        value = instruction.argval
        if hint is not None and hint < len(self.consts) and self.consts[hint] is value:
            return hint
        index = self._const_index.get(id(value))
        if index is None:
            index = self._const_index[id(value)] = len(self.consts)
            self.consts.append(value)
        return index

    def _name(self, instruction: Instruction, hint: int | None) -> int:
        name = instruction.argval
        index = self._name_index.get(name)
        if index is None:
            index = self._name_index[name] = len(self.names)
            self.names.append(name)
        return index

    def _variable(self, table: dict[str, int], name: str, hint: int | None) -> int:
        if hint is not None and hint < len(self.variables) and self.variables[hint] == name:
            return hint
        if name not in table:
            raise BytecodeError(f"no variable {name!r} in {self.variables}")
        return table[name]

    def _local(self, instruction: Instruction, hint: int | None) -> int:
        return self._variable(self._local_index, instruction.argval, hint)

    def _cell(self, instruction: Instruction, hint: int | None) -> int:
        return self._variable(self._cell_index, instruction.argval, hint)

    def fits_pair(self, names: tuple[str, str]) -> bool:
        """Whether both variables are among the first 16."""
        return all(self._local_index.get(name, 16) < 16 for name in names)

    def _pair(self, instruction: Instruction, hint: int | None) -> int:
        first, second = instruction.argval
        high = self._variable(self._local_index, first, None if hint is None else hint >> 4)
        low = self._variable(self._local_index, second, None if hint is None else hint & 15)
        if high > 15 or low > 15:
            raise BytecodeError(f"{instruction.opname} reaches only the first 16 variables, not {instruction.argval}")
        return high << 4 | low

    def _binary(self, instruction: Instruction, hint: int | None) -> int:
        return BINARY_SYMBOLS.index(instruction.argval)

    def _compare(self, instruction: Instruction, hint: int | None) -> int:
        return COMPARE_SYMBOLS.index(instruction.argval)


def _split_pairs(instructions: Sequence[Instruction], tables: OperandTables) -> Sequence[Instruction]:
    """Split instructions on two variables if the short operand cannot encode a variable."""
    split: list[Instruction] = []
    for instruction in instructions:
        if instruction.opname not in VERSION.pair_operands or tables.fits_pair(instruction.argval):
            split.append(instruction)
            continue
        first, _, second = instruction.opname.partition("_FAST_")
        names = instruction.argval
        follower = Instruction(second, None, names[1], handler=instruction.handler, position=instruction.position)
        # this object must stay the target of jumps and handlers
        instruction.opname, instruction.arg, instruction.argval = f"{first}_FAST", None, names[0]
        split += [instruction, follower]
    return split


def _load_cells(instructions: Sequence[Instruction], tables: OperandTables) -> None:
    """Rename instructions that push cells to this version's name."""
    if VERSION.closure_load != "LOAD_CLOSURE":
        for instruction in instructions:
            if instruction.opname == "LOAD_CLOSURE":
                instruction.arg = tables.index("cell", instruction, instruction.arg)
                instruction.opname = VERSION.closure_load


def _operand(instruction: Instruction, tables: OperandTables) -> int:
    """The encoded operand; 0 for jumps (set when placed) and for instructions without one."""
    name = instruction.opname
    number = opcode.opmap.get(name)
    if number is None:
        raise BytecodeError(f"Python {VERSION.number[0]}.{VERSION.number[1]} has no instruction {name}")
    if number < opcode.HAVE_ARGUMENT:
        return 0
    kind = OPERAND_KINDS.get(name)
    if kind is None:
        if instruction.arg is None:
            raise BytecodeError(f"{name} needs an operand")
        return instruction.arg
    if kind == "jump":
        if instruction.target is None:
            raise BytecodeError(f"{name} needs a target")
        return 0
    bits = VERSION.compare_shift if kind == "compare" else VERSION.flag_bits.get(name, 0)
    hint = None if instruction.arg is None else instruction.arg >> bits
    return tables.index(kind, instruction, hint) << bits | instruction.flags


def _direct_jumps(instructions: Sequence[Instruction]) -> None:
    """Choose the opname of each jump by its direction."""
    place = {id(instruction): index for index, instruction in enumerate(instructions)}
    for index, instruction in enumerate(instructions):
        if instruction.target is None:
            continue
        if id(instruction.target) not in place:
            raise BytecodeError(f"{instruction!r} leads to an instruction that is not in the list")
        backward = place[id(instruction.target)] <= index
        if backward == leads_back(instruction):
            continue
        twins = VERSION.backward_twins if backward else FORWARD_TWINS
        if instruction.opname not in twins:
            raise BytecodeError(f"{instruction!r} cannot jump {'backward' if backward else 'forward'}")
        instruction.opname = twins[instruction.opname]


def _prefixes(operand: int) -> int:
    return 0 if operand < 0x100 else 1 if operand < 0x10000 else 2 if operand < 0x1000000 else 3


def _place(instructions: Sequence[Instruction], operands: list[int]) -> tuple[list[int], int]:
    """Set jump operands; returns (first code unit of each instruction incl. its prefixes, number of units)."""
    numbers = [opcode.opmap[instruction.opname] for instruction in instructions]
    place = {id(instruction): index for index, instruction in enumerate(instructions)}
    jumps = [
        (index, place[id(instruction.target)])
        for index, instruction in enumerate(instructions)
        if instruction.target is not None
    ]
    lengths = [1 + CACHES[number] + _prefixes(operand) for number, operand in zip(numbers, operands, strict=True)]
    while True:
        starts, unit = [], 0
        for length in lengths:
            starts.append(unit)
            unit += length
        grew = False
        for index, destination in jumps:
            distance = starts[destination] - (starts[index] + lengths[index])
            operands[index] = abs(distance)
            needed = 1 + CACHES[numbers[index]] + _prefixes(operands[index])
            if needed > lengths[index]:  # lengths only grow, so the loop ends
                lengths[index] = needed
                grew = True
        if not grew:
            break
    # a jump whose prefix proved unnecessary keeps its room: its operand is encoded with that many prefixes
    for index, _ in jumps:
        if lengths[index] != 1 + CACHES[numbers[index]] + _prefixes(operands[index]):
            raise BytecodeError(f"jump {instructions[index]!r} shrank while being placed")
    return starts, unit


def _encode(instructions: Sequence[Instruction], operands: Sequence[int]) -> bytes:
    data = bytearray()
    for instruction, operand in zip(instructions, operands, strict=True):
        number = opcode.opmap[instruction.opname]
        for shift in range(8 * _prefixes(operand), 0, -8):
            data += bytes((_EXTENDED_ARG, operand >> shift & 0xFF))
        data += bytes((number, operand & 0xFF))
        data += bytes(2 * CACHES[number])
    return bytes(data)


# ---- exception table (Objects/exception_handling_notes.txt in CPython) ----


def _exception_table(instructions: Sequence[Instruction], starts: Sequence[int], end: int) -> bytes:
    start_of = {id(instruction): start for instruction, start in zip(instructions, starts, strict=True)}
    data = bytearray()
    region: tuple[Handler, int] | None = None
    for instruction, start in [*zip(instructions, starts, strict=True), (None, end)]:
        handler = instruction.handler if instruction is not None else None
        if region is not None and (handler is None or not _same(handler, region[0])):
            active, begin = region
            if id(active.target) not in start_of:
                raise BytecodeError(f"handler {active.target!r} is not in the list")
            data += _varint(begin, 0x80) + _varint(start - begin) + _varint(start_of[id(active.target)])
            data += _varint(active.depth << 1 | active.lasti)
            region = None
        if region is None and handler is not None:
            region = (handler, start)
    return bytes(data)


def _same(one: Handler, other: Handler) -> bool:
    return one is other or (one.target is other.target and one.depth == other.depth and one.lasti == other.lasti)


def _varint(value: int, mark: int = 0) -> bytes:
    """Big-endian groups of 6 bits, continuation bit 0x40; `mark` is set on the first byte."""
    groups = [value & 63]
    while value := value >> 6:
        groups.append(value & 63 | 0x40)
    groups.reverse()
    groups[0] |= mark
    return bytes(groups)


# ---- line table (Objects/locations.md in CPython) ----


def _line_table(instructions: Sequence[Instruction], starts: Sequence[int], end: int, first_line: int) -> bytes:
    data = bytearray()
    line = first_line
    for position, units in _position_runs(instructions, starts, end):
        while units > 0:
            chunk = min(units, 8)
            entry, line = _location(position, chunk, line)
            data += entry
            units -= chunk
    return bytes(data)


def _position_runs(
    instructions: Sequence[Instruction], starts: Sequence[int], end: int
) -> Iterable[tuple[Position, int]]:
    current: Position | None = None
    begin = 0
    for instruction, start in zip(instructions, starts, strict=True):
        if current is None or instruction.position != current:
            if current is not None and start > begin:
                yield current, start - begin
            current, begin = instruction.position, start
    if current is not None:
        yield current, end - begin


def _location(position: Position, units: int, line: int) -> tuple[bytes, int]:
    """One entry of the table, and the line to which the next entry is relative."""
    size = units - 1
    here, end_line, column, end_column = position
    if here is None:
        return bytes((0x80 | 15 << 3 | size,)), line
    delta = here - line
    if column is None or end_column is None:
        return bytes((0x80 | 13 << 3 | size,)) + _signed(delta), here
    if (end_line is None or end_line == here) and column < 128 and end_column < 128:
        if delta == 0 and column < 80 and 0 <= end_column - column < 16:
            low = (column & 7) << 4 | end_column - column
            return bytes((0x80 | column >> 3 << 3 | size, low)), here
        if 0 <= delta <= 2:
            return bytes((0x80 | (10 + delta) << 3 | size, column, end_column)), here
    last = here if end_line is None else end_line
    body = _signed(delta) + _little(last - here) + _little(column + 1) + _little(end_column + 1)
    return bytes((0x80 | 14 << 3 | size,)) + body, here


def _little(value: int) -> bytes:
    """Little-endian groups of 6 bits, continuation bit 0x40."""
    groups = bytearray()
    while value > 63:
        groups.append(value & 63 | 0x40)
        value >>= 6
    groups.append(value)
    return bytes(groups)


def _signed(value: int) -> bytes:
    return _little((-value << 1 | 1) if value < 0 else value << 1)
