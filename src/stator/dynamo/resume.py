"""Code that continues a frame in the middle: made from the original code, entered behind a graph break.

Made code keeps the user's file, name and lines, so that tracebacks show the program as it was written.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType

from .bytecode import OPERAND_KINDS, Builder, Instruction, assemble, code_units, decode, reachable

_STACK_PREFIX = "__stack_"


class Slot(enum.Enum):
    """What a slot of the value stack holds when a frame is continued."""

    VALUE = "value"  # passed as an argument
    NULL = "NULL"
    LASTI = "lasti"  # the offset of the instruction that raised, under its exception


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where and with what a frame is continued.

    index: instruction of the decoded `code` to go on with.
    stack: the value stack there, bottom first.
    locals: names of bound local variables, passed as arguments, in this order.
    cells: names of cell variables that exist; they become free variables.
    raised_at: index of the instruction whose exception is on the stack, if there is a LASTI slot.
    """

    code: CodeType
    index: int
    stack: tuple[Slot, ...]
    locals: tuple[str, ...]
    cells: tuple[str, ...]
    raised_at: int | None = None

    @property
    def closure(self) -> tuple[str, ...]:
        """Free variables of the resume function, in order: cells of the frame, then its own free variables."""
        return self.cells + self.code.co_freevars


def resume_code(point: ResumePoint) -> CodeType:
    """A code object that takes `point.locals`, then the stack's values, as positional arguments, and goes on there."""
    original = decode(point.code)
    entry = original[point.index]
    kept = reachable(original, entry)
    taken = set(point.locals) | set(point.code.co_varnames)
    stack_names = _stack_names(point.stack, taken)
    builder = Builder()
    builder.position = entry.position
    if point.closure:
        builder.add("COPY_FREE_VARS", len(point.closure), len(point.closure))
    builder.resume()
    lasti = _Offset() if Slot.LASTI in point.stack else None
    names = iter(stack_names)
    for slot in point.stack:
        if slot is Slot.NULL:
            builder.null()
        elif slot is Slot.LASTI:
            builder.const(lasti)
        else:
            name = next(names)
            builder.load_bound(name)
            builder.delete(name)  # the frame must not keep alive what the stack lets go
    start = Instruction("NOP", position=entry.position, handler=entry.handler)
    builder.jump(start)
    instructions = builder.instructions
    marker = None
    if point.raised_at is not None:
        marker = Instruction("NOP", position=original[point.raised_at].position)  # only its offset is used
        instructions.append(marker)
    instructions += _with_regions_closed(kept, entry, start)
    code = _assemble(point, instructions, (*point.locals, *stack_names))
    if lasti is not None and marker is not None:
        offset = code_units(code)[instructions.index(marker)]
        code = code.replace(co_consts=tuple(offset if value is lasti else value for value in code.co_consts))
    return code


def _with_regions_closed(kept: Sequence[Instruction], entry: Instruction, start: Instruction) -> list[Instruction]:
    """`kept` with `start`, a NOP, before `entry`; and a NOP of its region before each instruction that lost the one in
    front of it: 3.13 looks an exception that leaves a called Python function up one unit before the call."""
    closed: list[Instruction] = []
    previous = -1
    for instruction in kept:
        if instruction is entry:
            closed.append(start)
        elif instruction.index != previous + 1 and instruction.handler is not None:
            closed.append(Instruction("NOP", position=instruction.position, handler=instruction.handler))
        closed.append(instruction)
        previous = instruction.index
    return closed


class _Offset:
    """Stands in the constants for an offset that is known only once the code is assembled."""


def _stack_names(stack: Sequence[Slot], taken: set[str]) -> list[str]:
    names: list[str] = []
    for slot in stack:
        if slot is Slot.VALUE:
            name = f"{_STACK_PREFIX}{len(names)}"
            while name in taken:
                name += "_"
            names.append(name)
    return names


def _assemble(point: ResumePoint, instructions: list[Instruction], parameters: tuple[str, ...]) -> CodeType:
    code = point.code
    used = {name for instruction in instructions for name in _local_names(instruction)}
    others = tuple(
        name for name in code.co_varnames if name in used and name not in parameters and name not in point.cells
    )
    variables = parameters + others
    return assemble(
        instructions,
        code,
        co_argcount=len(parameters),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
        co_varnames=variables,
        co_nlocals=len(variables),
        co_cellvars=tuple(name for name in code.co_cellvars if name not in point.cells),
        co_freevars=point.closure,
        co_consts=code.co_consts,
    )


def _local_names(instruction: Instruction) -> tuple[str, ...]:
    kind = OPERAND_KINDS.get(instruction.opname)
    if kind == "local":
        return (instruction.argval,)
    return instruction.argval if kind == "pair" else ()
