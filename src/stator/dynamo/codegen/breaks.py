"""The exit at a graph break: restore stack and locals, run the breaking instruction natively, and call a resume
function for each way on from the instruction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, ModuleType
from typing import Any

from stator.base.errors import CompileError
from stator.dynamo.bytecode import VERSION, Handler, Instruction, stack_effect, stored_variables
from stator.dynamo.guards.source import LocalSource
from stator.dynamo.ir.capture_result import Break
from stator.dynamo.ir.prepared_code import prepare_code
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, FrameCell, Load, RaisedAt, Recipe
from stator.dynamo.ir.resume import ResumePoint, Slot, resumption_of

from .writer import Writer

MakeResume = Callable[[ResumePoint], Any]
Hook = tuple[Callable[[], object], Callable[[], object]]  # (turn the frame hook on, turn it off)

CALL_PREFIXES = ("KW_NAMES", "PRECALL")
# opname -> number of stack slots that the call pops, the callable's NULL included
CALL_OPERANDS: dict[str, Callable[[int], int]] = {
    "CALL": lambda count: count + 2,
    "CALL_KW": lambda count: count + 3,
    "CALL_FUNCTION_EX": lambda flags: 3 + (flags & 1),
}
_GENERATOR_ONLY = ("SEND", "YIELD_VALUE", "GET_AWAITABLE", "RETURN_GENERATOR")
_OF_HANDLERS = ("PUSH_EXC_INFO", "POP_EXCEPT")
_LOOP_ENDS = {(3, 11): (), (3, 12): ("END_FOR",), (3, 13): ("END_FOR", "POP_TOP")}  # at the end of a loop's FOR_ITER
NO_WAY_ON = ("RAISE_VARARGS", "RERAISE", "RETURN_VALUE", "RETURN_CONST")


class BreakWriter:
    """Writes the exit of a frame that breaks."""

    def __init__(
        self,
        writer: Writer,
        exit_: Break,
        make_resume: MakeResume,
        dispatch: Callable[[Any], Any] | None,
        hook: Hook | None = None,
    ) -> None:
        self.hook = hook
        self.writer = writer
        self.builder = writer.builder
        self.exit = exit_
        self.make_resume = make_resume
        self.dispatch = dispatch
        self.original = prepare_code(writer.code).instructions
        resumption = resumption_of(writer.code)
        self.user_code = writer.code if resumption is None else resumption.point.code
        self.stack = list(exit_.stack)
        self.locals = self._live_locals()
        self.cells = tuple(name for name in self.user_code.co_cellvars if name in exit_.cells)

    def write(self) -> None:
        native, after, was_method = self._native_instructions()
        main = native[-1]
        if main.opname in _GENERATOR_ONLY:
            raise CompileError("dynamo", f"a break at {main.opname}, inside of a generator, cannot be resumed")
        self.builder.position = main.position
        if main.opname in _OF_HANDLERS:
            raise CompileError("dynamo", f"a break at {main.opname} cannot be resumed")
        self._put_back(self._callee_slot(main), self._consumed_from(main))
        self._follow_variables(main)
        if not self._may_call_unseen(main):
            self.hook = None
        reconstructor: list[Callable[[], None]] = []
        self._protect(native, reconstructor)
        if main.target is not None:
            self._jump_exit(native, reconstructor)
        self.builder.instructions += native
        if was_method:
            self._continue_at(after, self._split_method(native))
        elif main.opname not in NO_WAY_ON:
            self._continue_at(after, self._slots_after(native, jump=False))
        for write_exit in reconstructor:
            write_exit()

    # ---- what runs natively ----

    def _may_call_unseen(self, main: Instruction) -> bool:
        """Whether the operation may run Python code without a call instruction: a property, an operator of a class, an
        iterator, a context manager. Calls dispatch by themselves, and jumps rarely run a `__bool__` of the user's."""
        if main.opname in CALL_OPERANDS or main.opname in NO_WAY_ON:
            return False
        place = self.exit.reason.place
        line = self.original[self.exit.index].line
        broke_in_a_call = (place.filename, place.line) != (self.writer.code.co_filename, line)
        return broke_in_a_call or main.target is None or main.opname == "FOR_ITER"

    def _turn_hook(self, *, on: bool) -> None:
        if self.hook is not None:
            self.builder.const_callee(self.hook[0] if on else self.hook[1])
            self.builder.call(0)
            self.builder.pop()

    def _turning_on(self) -> list[Instruction]:
        """Write the calls that turn the hook on. They need the operation's exception handler, because an interrupt may
        follow at once."""
        before = len(self.builder.instructions)
        self._turn_hook(on=True)
        return self.builder.instructions[before:]

    def _native_instructions(self) -> tuple[list[Instruction], int, bool]:
        """Copies of the instructions of the operation, the index behind them, and whether the operation was a load in
        the method form."""
        first = last = self.exit.index
        while self.original[last].opname in CALL_PREFIXES:
            last += 1
        first = first_of_call(self.original, first)
        copies = [self.original[index].copy() for index in range(first, last + 1)]
        copies[-1], was_method = _with_fixed_shape(copies[-1])
        return copies, last + 1, was_method

    def _consumed_from(self, main: Instruction) -> int:
        """Stack position of a call's first operand slot, NULLs included; for other operations, the depth of the
        stack."""
        operands = CALL_OPERANDS.get(main.opname)
        return len(self.stack) - (operands(main.arg or 0) if operands else 0)

    def _callee_slot(self, main: Instruction) -> int | None:
        """Stack position of the callable of a call."""
        if main.opname not in CALL_OPERANDS:
            return None
        base = self._consumed_from(main)
        return base + 1 if self.stack[base] is None else base

    # ---- putting the frame's state back ----

    def _live_locals(self) -> dict[str, Any]:
        """Locals to hand over, in the frame's order; cell variables are handed over as cells. (A frame in which a
        super() behind the break needs its receiver is not resumed at all.)"""
        code = self.user_code
        live = {name: recipe for name, recipe in self.exit.locals.items() if name not in self.exit.cells}
        order = {name: index for index, name in enumerate(code.co_varnames)}
        if not order.keys() >= live.keys():
            raise CompileError("dynamo", "a break in resume code before its value stack is restored")
        return {name: live[name] for name in sorted(live, key=order.__getitem__)}

    def _put_back(self, callee: int | None, consumed_nulls: int) -> None:
        """Restore cells and locals, push the stack, and unbind every temporary."""
        writer, builder = self.writer, self.builder
        changed = [name for name, recipe in self.locals.items() if not self._is_in_place(name, recipe)]
        cells = [name for name, recipe in self.exit.cells.items() if not self._is_own_cell(name, recipe)]
        writer.overwritten.update(changed)
        writer.preload_sources(writer.used_after_graph)
        writer.end_guarded()
        writer.handle_as_before()
        for name in changed:
            writer.load(self.locals[name])
        for name in cells:
            writer.load(self.exit.cells[name])
        for name in reversed(changed + cells):
            builder.store(name)
        begun = dict(self.exit.handlers[self.exit.handlers_kept :])
        for position, recipe in enumerate(self.stack):
            if position in begun:
                writer.load(begun[position])
                builder.begin_handler()
                builder.pop()
            else:
                self._push(position, recipe, callee, consumed_nulls)
        self._push_operands()
        writer.clear_temporaries(writer.forget_slots())
        for name in self._dead_parameters():
            builder.delete(name)

    def _push_operands(self) -> None:
        """Push operands of the operation that are not on the frame's stack."""

    def _is_in_place(self, name: str, recipe: Any) -> bool:
        """Whether the variable holds that value already: a parameter that was not assigned."""
        return isinstance(recipe, Load) and recipe.source == LocalSource(name) and name not in self.writer.made_cells

    def _is_own_cell(self, name: str, recipe: Any) -> bool:
        """Whether the variable's slot holds that cell already. (Inlined comprehensions put other cells there.)"""
        return isinstance(recipe, FrameCell) and recipe.name == name

    def _push(self, position: int, recipe: Any, callee: int | None, consumed_nulls: int) -> None:
        if recipe is None:
            if position >= consumed_nulls:
                self.builder.null()
            else:
                self.builder.const(None)  # a placeholder that no instruction reads; the resume function pushes the NULL
        elif position == callee and self.dispatch is not None:
            if _is_function_in_c(recipe):
                self.builder.const(self.dispatch(recipe.value))
                return
            self.builder.const_callee(self.dispatch)
            self.writer.load(recipe)
            self.builder.call(1)
        else:
            self.writer.load(recipe)

    def _follow_variables(self, main: Instruction) -> None:
        """Hand over the variable that the operation stores, not the variable that it deletes."""
        if main.opname == "DELETE_FAST":
            self.locals.pop(main.argval, None)
            return
        stored = stored_variables(main)
        self.locals.update((name, Load(LocalSource(name))) for name in stored if name not in self.cells)
        order = {name: index for index, name in enumerate(self.user_code.co_varnames)}
        self.locals = {name: self.locals[name] for name in sorted(self.locals, key=order.__getitem__)}

    # ---- going on ----

    def _slots(self) -> list[Slot]:
        return [slot_of(recipe) for recipe in self.stack]

    def _slots_after(self, native: list[Instruction], *, jump: bool) -> list[Slot]:
        """The kinds of slots on the emitted stack behind the operation. Untouched slots keep their kind."""
        before = self._slots()
        depth = len(before)
        for instruction in native[:-1]:
            depth += stack_effect(instruction, instruction.arg or 0, jump=False)
        depth += stack_effect(native[-1], native[-1].arg or 0, jump=jump)
        kept = min(self._consumed_from(native[-1]), depth)
        return before[:kept] + [Slot.VALUE] * (depth - kept)

    def _split_method(self, native: list[Instruction]) -> list[Slot]:
        """Behind a load in the method form, which may push a method and its receiver: push always the attribute and a
        NULL."""
        slots = self._slots_after(native, jump=False)
        self.builder.const(None)
        if VERSION.callee_first:
            return [*slots, Slot.NULL]
        self.builder.swap(2)
        return [*slots[:-1], Slot.NULL, Slot.VALUE]

    def _protect(self, native: list[Instruction], reconstructor: list[Callable[[], None]]) -> None:
        """Route an exception of the operation to the handler that the original code has for it."""
        region = self.original[self.exit.index].handler
        if region is None:
            if self.exit.handlers:
                raise CompileError("dynamo", "a break in an exception handler without an exception-table entry")
            self._leave_unhooked(native, reconstructor)
            return
        label = self.builder.label()
        handler = Handler(label, region.depth, lasti=False)
        for instruction in (*self._turning_on(), *native):
            instruction.handler = handler
        # 3.13 looks up an exception of a called Python function one unit before the call
        self.builder.add("NOP").handler = handler
        slots = self._slots()[: region.depth] + [Slot.LASTI] * region.lasti + [Slot.VALUE]

        def write() -> None:
            self.builder.append(label)
            self._continue_at(region.target.index, slots, cut=region.depth)

        reconstructor.append(write)

    def _leave_unhooked(self, native: list[Instruction], reconstructor: list[Callable[[], None]]) -> None:
        """Let an exception of the operation leave the frame, with the hook turned off."""
        if self.hook is None:
            return
        label = self.builder.label()
        for instruction in (*self._turning_on(), *native):
            instruction.handler = Handler(label, 0, lasti=False)

        def write() -> None:
            self.builder.append(label)
            self._turn_hook(on=False)
            self.builder.reraise()

        reconstructor.append(write)

    def _jump_exit(self, native: list[Instruction], reconstructor: list[Callable[[], None]]) -> None:
        """The exit for the case that the operation jumps."""
        main = native[-1]
        assert main.target is not None
        index, label = main.target.index, self.builder.label()
        slots = self._slots_after(native, jump=True)
        ends: tuple[str, ...] = _LOOP_ENDS[VERSION.number] if main.opname == "FOR_ITER" else ()
        for name in ends:
            slots = slots[: len(slots) + stack_effect(Instruction(name), 0, jump=False)]
        if ends:  # FOR_ITER skips the instruction at its target, which must therefore end the loop
            label = Instruction(ends[0], position=main.position)
        main.target = label

        def write() -> None:
            self.builder.append(label)
            for name in ends[1:]:
                self.builder.add(name)
            self._continue_at(index + len(ends), slots)

        reconstructor.append(write)

    def _continue_at(
        self,
        index: int,
        slots: list[Slot],
        *,
        cut: int | None = None,
        joined: bool = False,
    ) -> None:
        """Call the resume function with the live locals and the values on the emitted stack, and return its result.

        cut: the operation raised, and the interpreter cut the stack to this depth.
        joined: the top of the stack is the continuation of the called function.
        """
        builder = self.builder
        self._turn_hook(on=False)
        point = self._point(index, slots, len(slots) if cut is None else cut)
        resume = self._resume(point, joined=joined)
        self._pass_by(resume, index, cut)
        held: list[str] = []
        for position in reversed(range(len(slots))):
            if slots[position] is Slot.VALUE:
                held.append(self.writer.temporary())
                builder.store(held[-1])
            elif position != cut:
                self._drop(slots[position])
        held.reverse()
        builder.const_callee(resume)
        for name in point.closure:
            builder.load_cell(name)
        for name in (*self.locals, *held):
            self._take(name)
            builder.delete(name)
        builder.call(len(point.closure) + len(self.locals) + len(held))
        builder.return_value()

    def _resume(self, point: ResumePoint, *, joined: bool) -> Any:
        return self.make_resume(point)

    def _pass_by(self, resume: Any, index: int, cut: int | None) -> None:
        """Write a way past the call of `resume`, for frames whose own code may run on."""

    def _drop(self, slot: Slot) -> None:
        self.builder.pop()  # a placeholder stands for a NULL

    def _take(self, name: str) -> None:
        self.builder.load_bound(name)

    def _point(self, index: int, slots: list[Slot], cut: int) -> ResumePoint:
        """The resume point. `index` becomes an index of the user's code."""
        index = prepare_code(self.writer.code).user_index(index)
        handlers = tuple(position for position, _ in self.exit.handlers if position < cut)
        private = tuple(name for name in self.cells if name in self.exit.private_cells)
        point = ResumePoint(self.user_code, index, tuple(slots), tuple(self.locals), self.cells, handlers, private)
        varying = tuple(name for name in self.locals if name in self.exit.varying)
        held = (at for at, slot in enumerate(slots) if slot is Slot.VALUE and at in self.exit.varying)
        varying += tuple(map(point.stack_parameter, held))
        if cut == len(slots) and not self.exit.inner and self.exit.reason.kind == "varying-length":
            made = range(cut - self._varying_results(), cut)
            varying += tuple(point.stack_parameter(at) for at in made if slots[at] is Slot.VALUE)
        return replace(point, varying=varying)

    def _varying_results(self) -> int:
        """The number of containers whose lengths likely change, too, which the instruction that runs natively makes of
        one. A program that unpacks such a container knows its length, but for `rows, columns = zip(*pairs)`."""
        operation, before = self.original[self.exit.index], self.original[self.exit.index - 1].opname
        if operation.opname == "UNPACK_SEQUENCE":
            return operation.arg or 0
        name = operation.opname
        takes_part = name == "BINARY_SLICE" or (name == "BINARY_SUBSCR" and before == "BUILD_SLICE")
        return int(takes_part or name.startswith(("PRECALL", "CALL", "BINARY_OP")))

    def _dead_parameters(self) -> list[str]:
        code = self.writer.code
        flags = code.co_flags
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(flags & inspect.CO_VARARGS) + bool(flags & inspect.CO_VARKEYWORDS)
        return [name for name in code.co_varnames[:count] if name not in self.locals and name not in code.co_cellvars]


def first_of_call(instructions: Sequence[Instruction], index: int) -> int:
    """The index of the call's first instruction, if this instruction is part of a call; else `index` itself."""
    if instructions[index].opname == "CALL" or instructions[index].opname in CALL_PREFIXES:
        while instructions[index - 1].opname in CALL_PREFIXES:
            index -= 1
    return index


def _is_function_in_c(recipe: Any) -> bool:
    """Whether the callee is always this function of a module written in C, which carries no mark of `dispatch`."""
    if not isinstance(recipe, ConstantRecipe) or type(recipe.value) is not BuiltinFunctionType:
        return False
    owner = recipe.value.__self__
    return owner is None or type(owner) is ModuleType


def slot_of(recipe: Recipe | None) -> Slot:
    if recipe is None:
        return Slot.NULL
    return Slot.LASTI if isinstance(recipe, RaisedAt) else Slot.VALUE


def _with_fixed_shape(instruction: Instruction) -> tuple[Instruction, bool]:
    """The load without the method form, whose number of results depends on the attribute; and whether it had that
    form."""
    if instruction.opname == "LOAD_METHOD":
        return Instruction("LOAD_ATTR", None, instruction.argval, position=instruction.position), True
    if instruction.opname == "RERAISE":  # the stack holds no instruction offset here
        instruction.arg = instruction.argval = 0
    if instruction.opname in ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_SUPER_ATTR") and instruction.flags & 1:
        instruction.flags &= ~1
        instruction.arg = None
        return instruction, True
    return instruction, False
