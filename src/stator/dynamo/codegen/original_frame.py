"""The exit at a graph break before which there is nothing to compile: the frame's own code runs up to and with the
operation, then hands its stack and variables to the resume function. Nothing is rebuilt, so objects keep their
identity, their references and their order."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from stator.base.errors import CompileError
from stator.dynamo.bytecode import (
    VERSION,
    BytecodeError,
    Instruction,
    always_bound,
    assemble,
    decode,
    live_locals,
)
from stator.dynamo.guards.guard_tree import bound_count
from stator.dynamo.host.native_status import native as native_module
from stator.dynamo.ir.capture_result import Break, CapturedFrame
from stator.dynamo.ir.prepared_code import prepare_code, reads_no_frame
from stator.dynamo.ir.reconstruct_ir import Recipe
from stator.dynamo.ir.resume import ResumePoint, Slot

from .breaks import CALL_OPERANDS, NO_WAY_ON, BreakWriter, Hook, MakeResume
from .writer import Writer

_CHOSEN = ("disabled", "numpy-function")  # kinds of breaks at calls whose callee `dispatch` knows
_METHOD_FORMS = ("LOAD_ATTR", "LOAD_SUPER_ATTR")  # from 3.12 on, marked by the lowest flag


def emit_original_frame(
    captured: CapturedFrame, *, make_resume: MakeResume, dispatch: Callable[[Any], Any], hook: Hook
) -> CodeType | None:
    """The frame's own code, which leaves the frame behind the break; None if the operation at the break leaves the
    frame anyway. The parameters are those of `emit`. The hook is on for calls, too, unless the program chose how such
    a call is compiled. Raises CompileError if no bytecode can express it."""
    assert isinstance(captured.exit, Break) and captured.runs_original
    writer = Writer(captured)
    own = _OwnCodeWriter(writer, captured.exit, make_resume, dispatch, hook)
    if own.leaves_anyway():
        return None
    try:
        own.write()
        code = captured.code
        names = code.co_varnames + tuple(writer.temporaries)
        return assemble(writer.builder.instructions, code, co_varnames=names, co_nlocals=len(names))
    except BytecodeError as error:
        raise CompileError("dynamo", f"emitted bytecode cannot be encoded: {error}") from error


def is_right_on_any_path(captured: CapturedFrame) -> bool:
    """Whether this code is correct for any arguments: every path to the break has equal kinds of stack slots and equal
    bound variables. Then guards only decide when to look again for something to compile."""
    exit_ = captured.exit
    if not isinstance(exit_, Break):
        return True
    instructions = prepare_code(captured.code).instructions
    if None in exit_.stack and any(instruction.opname == "LOAD_FAST_AND_CLEAR" for instruction in instructions):
        return False  # a load in the method form may push a NULL
    code = captured.code
    parameters = frozenset(code.co_varnames[: bound_count(code)])
    if not always_bound(instructions, exit_.index, parameters).issuperset(exit_.locals):
        return False
    handed_over = {*exit_.locals, *code.co_cellvars, *code.co_freevars}
    return reads_no_frame(code) and handed_over.issuperset(live_locals(instructions, exit_.index))


class _OwnCodeWriter(BreakWriter):
    """Writes the whole code of a frame, with exits around the operation."""

    def __init__(
        self, writer: Writer, exit_: Break, make_resume: MakeResume, dispatch: Callable[[Any], Any], hook: Hook
    ) -> None:
        super().__init__(writer, exit_, make_resume, dispatch if exit_.reason.kind in _CHOSEN else None, hook)
        self.original = decode(writer.code)  # a copy that may be modified
        native, self.after, _ = self._native_instructions()
        self.first = self.after - len(native)
        # A NULL that some instruction reads must not come from a method-form load, whose results are known only at run
        # time
        self.is_split = False  # behind the operation the stack differs from the frame's
        # Guards on tensors limit what may come behind an exit of code with operations; nothing limits it otherwise
        self.may_run_on = writer.captured.op_count > 0
        self.keeps_nulls = None in self.stack[: None if self.dispatch else self._consumed_from(native[-1])]

    def leaves_anyway(self) -> bool:
        instruction = self.original[self.exit.index]
        return instruction.opname in NO_WAY_ON and instruction.handler is None

    def write(self) -> None:
        super().write()
        rest = self._part(self.after, None)
        if rest and rest[0].handler is not None:
            # 3.13 looks up an exception of a called Python function one unit before the call
            self.builder.append(Instruction("NOP", position=rest[0].position, handler=rest[0].handler))
        self.builder.instructions += rest

    def _native_instructions(self) -> tuple[list[Instruction], int, bool]:
        native, after, was_method = super()._native_instructions()
        if native[-1].opname == "RERAISE":  # here the stack holds the offset of the instruction that raised
            native[-1] = self.original[after - 1].copy()
        return native, after, was_method

    def _put_back(self, callee: int | None, consumed_from: int) -> None:
        """Stack and variables are in place already, because the frame's own code ran up to here."""
        self.builder.instructions += self._part(0, self.first)
        start = self.original[self.first]  # must stay the target of jumps
        self.builder.append(start)
        start.opname, start.arg, start.argval, start.flags, start.target = "NOP", None, None, 0, None
        if callee is not None and self.dispatch is not None:
            written = len(self.builder.instructions)
            self._dispatch(len(self.stack) - callee)
            for instruction in self.builder.instructions[written:]:
                instruction.handler = start.handler

    def _dispatch(self, depth: int) -> None:
        """Replace the callee, the depth-th slot from the top, by its dispatched callable."""
        builder = self.builder
        swaps = [depth] if depth > 1 else []
        for at in swaps:
            builder.swap(at)
        builder.const(self.dispatch)
        builder.swap(2)  # a function and its first argument, as in method calls
        builder.call(0)
        for at in swaps:
            builder.swap(at)

    def _part(self, start: int, end: int | None) -> list[Instruction]:
        instructions = self.original[start:end]
        if not self.keeps_nulls:
            return instructions
        return [one for instruction in instructions for one in _without_method_form(instruction)]

    def _may_call_unseen(self, main: Instruction) -> bool:
        return (self.dispatch is None and main.opname in CALL_OPERANDS) or super()._may_call_unseen(main)

    def _live_locals(self) -> dict[str, Recipe]:
        order = {name: index for index, name in enumerate(self.user_code.co_varnames)}
        live = {name: recipe for name, recipe in self.exit.locals.items() if name not in self.exit.cells}
        if not order.keys() >= live.keys():
            raise CompileError("dynamo", "a break in resume code before its value stack is restored")
        return {name: live[name] for name in sorted(live, key=order.__getitem__)}

    def _split_method(self, native: list[Instruction]) -> list[Slot]:
        self.is_split = True
        return super()._split_method(native)

    def _resume(self, point: ResumePoint, *, joined: bool) -> Any:
        resume = super()._resume(point, joined=joined)
        return native_module.OwnCodeExit(resume) if self.may_run_on else resume

    def _pass_by(self, resume: Any, index: int, cut: int | None) -> None:
        """Run on where experience shows that nothing compiled runs behind the exit."""
        if cut is not None or self.is_split or not self.may_run_on:
            return
        taken = self.builder.label()
        self.builder.const(resume)
        self.builder.attr("runs_on")
        self.builder.jump_if_false(taken)
        self.builder.jump(self.original[index])
        self.builder.append(taken)

    def _drop(self, slot: Slot) -> None:
        if slot is Slot.NULL:
            self.builder.store(self.writer.temporary())  # the temporary is unbound afterwards
        else:
            self.builder.pop()

    def _take(self, name: str) -> None:
        self.builder.load(name)  # only guards ensure that the variable is bound


def _without_method_form(instruction: Instruction) -> list[Instruction]:
    """The instruction without the method form, followed by a NULL where the method form may push two values. (The
    instruction object itself is changed, so that jumps still reach it.)"""
    if instruction.opname == "LOAD_METHOD":
        instruction.opname = "LOAD_ATTR"
    elif instruction.opname in _METHOD_FORMS and instruction.flags & 1:
        instruction.flags &= ~1
    else:
        return [instruction]
    instruction.arg = None
    followers = (
        [Instruction("PUSH_NULL")] if VERSION.callee_first else [Instruction("PUSH_NULL"), Instruction("SWAP", 2)]
    )
    for follower in followers:
        follower.position, follower.handler = instruction.position, instruction.handler
    return [instruction, *followers]
