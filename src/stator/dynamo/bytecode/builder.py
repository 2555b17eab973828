"""Writes instructions by their meaning, and hides the differences between interpreter versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .instruction import NOWHERE, Instruction, Position
from .version import VERSION


class CodeBuilder:
    """Appends instructions to `instructions`. Every method names its effect on the value stack as `before -> after`."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.position: Position = NOWHERE

    def add(self, opname: str, arg: int | None = None, argval: Any = None, flags: int = 0) -> Instruction:
        """Append any instruction of this version."""
        instruction = Instruction(opname, arg, argval, flags, position=self.position)
        self.instructions.append(instruction)
        return instruction

    def append(self, instruction: Instruction) -> Instruction:
        self.instructions.append(instruction)
        return instruction

    # ---- stack ----

    def pop(self) -> None:
        """x ->"""
        self.add("POP_TOP")

    def duplicate(self, depth: int = 1) -> None:
        """... -> ..., copy of the depth-th from the top (1 is the top)"""
        self.add("COPY", depth, depth)

    def swap(self, depth: int) -> None:
        """Exchange the top with the depth-th from the top (2 is the one below)."""
        self.add("SWAP", depth, depth)

    def null(self) -> None:
        """-> NULL"""
        self.add("PUSH_NULL")

    # ---- constants and variables ----

    def const(self, value: Any) -> None:
        """-> value"""
        self.add("LOAD_CONST", argval=value)

    def load(self, name: str) -> None:
        """-> local variable. On 3.12+ an unbound variable raises UnboundLocalError."""
        self.add("LOAD_FAST" if VERSION.number < (3, 12) else "LOAD_FAST_CHECK", argval=name)

    def load_bound(self, name: str) -> None:
        """-> local variable that is known to be bound"""
        self.add("LOAD_FAST", argval=name)

    def store(self, name: str) -> None:
        """x ->"""
        self.add("STORE_FAST", argval=name)

    def delete(self, name: str) -> None:
        """Unbind a local variable that is bound."""
        self.add("DELETE_FAST", argval=name)

    def load_cell(self, name: str) -> None:
        """-> the cell object of a cell or free variable"""
        self.add("LOAD_CLOSURE", argval=name)

    def load_content(self, name: str) -> None:
        """-> content of a cell or free variable"""
        self.add("LOAD_DEREF", argval=name)

    def make_cell(self, name: str) -> None:
        """Turn the variable's slot into a cell that holds its value."""
        self.add("MAKE_CELL", argval=name)

    def load_global(self, name: str) -> None:
        """-> global or builtin"""
        self.add("LOAD_GLOBAL", argval=name)

    # ---- attributes and items ----

    def attr(self, name: str) -> None:
        """x -> x.name"""
        self.add("LOAD_ATTR", argval=name)

    def item(self) -> None:
        """x, key -> x[key]"""
        if VERSION.item_operator is None:
            self.add("BINARY_SUBSCR")
        else:
            self.add("BINARY_OP", argval=VERSION.item_operator)

    # ---- containers ----

    def tuple(self, count: int) -> None:
        self.add("BUILD_TUPLE", count, count)

    def list(self, count: int) -> None:
        self.add("BUILD_LIST", count, count)

    def map(self, count: int) -> None:
        """key, value, ... -> dict (count pairs)"""
        self.add("BUILD_MAP", count, count)

    def unpack(self, count: int) -> None:
        """sequence -> last item, ..., first item (first on top)"""
        self.add("UNPACK_SEQUENCE", count, count)

    # ---- calls ----

    def before_callee(self) -> None:
        """Call this before writing the instructions that push a callable."""
        if not VERSION.callee_first:
            self.null()

    def after_callee(self) -> None:
        """Call this after writing the instructions that push a callable, before its arguments."""
        if VERSION.callee_first:
            self.null()

    def const_callee(self, function: Any) -> None:
        """Push a constant callable, ready for its arguments."""
        self.before_callee()
        self.const(function)
        self.after_callee()

    def call(self, count: int, keywords: Sequence[str] = ()) -> None:
        """(callee as above), count arguments, of which the last len(keywords) are passed by name -> result"""
        names = tuple(keywords)
        if names and VERSION.keywords == "CALL_KW":
            self.const(names)
            self.add("CALL_KW", count, count)
            return
        if names:
            self.add("KW_NAMES", argval=names)
        if VERSION.precall:
            self.add("PRECALL", count, count)
        self.add("CALL", count, count)

    # ---- exceptions ----

    def begin_handler(self) -> None:
        """exception -> previously handled exception, exception; the exception becomes the handled one"""
        self.add("PUSH_EXC_INFO")

    def end_handler(self) -> None:
        """previously handled exception -> ; it becomes the handled one again"""
        self.add("POP_EXCEPT")

    def reraise(self) -> None:
        """exception -> ; adds no entry to the traceback"""
        self.add("RERAISE", 0, 0)

    # ---- control flow ----

    def label(self) -> Instruction:
        """A jump target that is not yet in the code: `append` it at its place."""
        return Instruction("NOP", position=self.position)

    def jump(self, target: Instruction) -> Instruction:
        return self._to("JUMP_FORWARD", target)

    def jump_if_false(self, target: Instruction) -> Instruction:
        """x ->, forward; x is a bool"""
        return self._to(VERSION.jump_if_false, target)

    def _to(self, opname: str, target: Instruction) -> Instruction:
        instruction = self.add(opname)
        instruction.target = target
        return instruction

    def return_value(self) -> None:
        """x ->"""
        self.add("RETURN_VALUE")

    def resume(self) -> None:
        """The instruction with which every function begins (behind its cells)."""
        self.add("RESUME", 0, 0)
