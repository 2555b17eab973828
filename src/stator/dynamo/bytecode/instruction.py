"""The instruction record that decoding returns and assembling takes. Plain data, without encodings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# The place of an instruction in the source file: line, end line, column, end column; None where the compiler recorded
# nothing. A plain tuple of numbers, unlike an object of a class, is none that the garbage collector visits.
Position = tuple[int | None, int | None, int | None, int | None]

NOWHERE: Position = (None, None, None, None)


@dataclass(eq=False, slots=True)
class Handler:
    """The exception handler of an instruction: the interpreter cuts the stack to `depth` entries, pushes the
    instruction's offset if `lasti`, pushes the exception, and jumps to `target`."""

    target: Instruction
    depth: int
    lasti: bool


@dataclass(eq=False, slots=True)
class Instruction:
    """One instruction without its EXTENDED_ARG prefixes and inline caches. Compared by identity.

    opname: name of this interpreter version's instruction, e.g. "LOAD_FAST".
    arg: the raw operand as decoded; None for made instructions whose operand follows from `argval` and `flags`.
    argval: the operand's meaning: the constant, the name, the variable's name (a pair of names for LOAD_FAST_LOAD_FAST
        and its like), the operator's symbol for BINARY_OP ("+", "+=") and COMPARE_OP ("<"), the tuple of names for
        KW_NAMES; otherwise the same number as `arg`.
    flags: the operand's low bits that are not part of the index: LOAD_GLOBAL bit 0: a NULL is pushed too; LOAD_ATTR
        (3.12+) bit 0: loads a method; LOAD_SUPER_ATTR bit 0: loads a method, bit 1: super() was given two arguments;
        COMPARE_OP (3.13) bit 4: the result is made a bool.
    target: where a jump leads.
    index: position in the list that `decode` returned (-1 for made instructions).
    """

    opname: str
    arg: int | None = None
    argval: Any = None
    flags: int = 0
    target: Instruction | None = None
    handler: Handler | None = None
    position: Position = NOWHERE
    index: int = -1

    @property
    def line(self) -> int | None:
        return self.position[0]

    def copy(self) -> Instruction:
        """A copy with shared `target` and `handler`, which the caller may redirect."""
        return Instruction(
            self.opname, self.arg, self.argval, self.flags, self.target, self.handler, self.position, self.index
        )

    def __repr__(self) -> str:
        operand = f" -> {self.target.index}" if self.target is not None else ""
        if self.target is None and (self.arg is not None or self.argval is not None):
            operand = f" {self.argval!r}"
        return f"<{self.index}: {self.opname}{operand}>"


def leads_back(instruction: Instruction) -> bool:
    """Whether the operand counts backward. (From 3.14 on, END_ASYNC_FOR names the start of its loop.)"""
    return "BACKWARD" in instruction.opname or instruction.opname == "END_ASYNC_FOR"
