"""One symbolic Python frame: its stack, its names, and the loop that steps through its instructions. The meaning of
instructions is in handlers/opcodes/, the behaviour of objects in values/.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FunctionType
from typing import Any

from stator.base.errors import Unsupported, UserPlace
from stator.base.signals import raised_by_signal_handler
from stator.dynamo.graph.finalizers import check_stack, check_variable
from stator.dynamo.host.break_kinds import break_hint
from stator.dynamo.host.hook import is_skipped
from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.capture_result import CaptureState
from stator.dynamo.ir.prepared_code import PreparedCode, prepare_code
from stator.dynamo.ir.resume import closure_of, resumption_of
from stator.dynamo.values.base import CaptureContext, Lazy, Raised, Value, unsupported
from stator.dynamo.values.constants import LastInstruction
from stator.dynamo.values.scopes import CellValue, GlobalScope

RETURNED = object()
YIELDED = object()


def _raised_by_program(error: BaseException) -> bool:
    """Whether code of the program, such as an `__eq__` or `__getattribute__`, raised the error; not code of stator."""
    codes = (frame.f_code for frame, _ in walk_tb(error.__traceback__))
    return not all(map(is_skipped, codes))


def _end_if_of_program(error: Exception) -> None:
    """Raises Unsupported if code of the program raised the error, unless a signal handler did."""
    if _raised_by_program(error) and not raised_by_signal_handler(error):
        reason = f"{class_name(type(error))} from code of the program, which ran when an object was looked at"
        raise unsupported("special-method", reason) from error


class StopAtBreak(Exception):
    """Capture reached the step at which the graph ends. Private to the interpreter.

    frames: the running frames, outermost first. handled: the exceptions being handled, innermost last.
    """

    def __init__(self, frames: list[Frame], handled: list[Value]) -> None:
        self.frames, self.handled = frames, handled
        super().__init__()


class Frame(CaptureState):
    """Interpreter state of one call. `stack` holds realized values (None is a NULL slot)."""

    __slots__ = (
        "arguments",
        "began",
        "called",
        "cells",
        "context",
        "contexts",
        "generator",
        "globals",
        "handlers",
        "handlers_kept",
        "handling",
        "kw_names",
        "locals",
        "module_frames",
        "name",
        "now",
        "passed",
        "pc",
        "program",
        "result",
        "stack",
    )

    def __init__(
        self,
        context: CaptureContext,
        program: PreparedCode,
        scope: GlobalScope,
        local_values: dict[str, Value],
        closure: tuple[CellValue, ...],
        name: str,
    ) -> None:
        self.context = context
        self.program = program
        self.globals = scope
        self.locals = local_values
        self.arguments = dict(local_values)  # variables get other values; resume code drops those that it pushes
        self.cells: dict[str, CellValue] = dict(zip(closure_of(program.code), closure, strict=True))
        self.name = name
        self.stack: list[Any] = []
        self.pc = 0  # the next instruction
        self.now = 0  # the running instruction
        self.passed: set[int] = set()  # instructions that have ended
        self.began = 0  # the capture's step at which the running instruction began
        self.generator: Any = None  # the GeneratorValue that owns the frame
        self.called = False  # the caller's call instruction only pushes the result
        self.result: Value | None = None
        self.kw_names: tuple[str, ...] = ()
        self.module_frames = 0  # torch's frames of a module call that capture skipped before this frame
        self.handlers: list[int] = []  # stack positions at which running handlers keep the exception handled before
        self.handling: list[Value] = []  # exceptions of the handlers, while the frame does not run
        self.handlers_kept = 0  # number of handlers that were running at entry and still are

    # -- stack --
    def pop(self) -> Any:
        return self.stack.pop()

    def pop_many(self, count: int) -> list[Any]:
        if not count:
            return []
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def push_read(self, value: Value) -> None:
        """Push a value that was read from a container or a name, and realize it."""
        self.stack.append(value.realize(self.context) if type(value) is Lazy else value)

    # -- handlers of exceptions --
    def begin_handler(self) -> None:
        self.handlers.append(len(self.stack))

    def end_handler(self) -> None:
        self.handlers.pop()
        self.handlers_kept = min(self.handlers_kept, len(self.handlers))

    # -- running --
    def run(self) -> Any:
        """Step until the frame returns or yields. Raises Raised when an exception leaves the frame."""
        handlers, instructions = self.program.handlers, self.program.instructions
        context = self.context
        handled, outermost = len(context.handled), not context.frames
        self._enter()
        try:
            if outermost:
                check_stack(self)
            while True:
                pc = self.now = self.pc
                self._begin_step(outermost)
                handler = handlers[pc]
                try:
                    if handler is None:
                        raise unsupported("opcode", f"the instruction {instructions[pc].opname}")
                    signal = handler(self, instructions[pc])
                except RecursionError as error:
                    raise unsupported("inline-depth", "calls nested too deeply to be followed") from error
                except Raised as raised:
                    if not self._caught(pc, raised):
                        raise
                    continue
                except (Unsupported, StopAtBreak):
                    raise
                except Exception as error:
                    _end_if_of_program(error)
                    raise
                self.passed.add(pc)
                if signal is not None:
                    return signal
                if self.pc <= pc:
                    context.count_turn()
        except Unsupported as error:
            raise self.located(error) from error.__cause__
        finally:
            self._leave(handled)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The frame is the innermost one, while the caller steps through it."""
        handled = len(self.context.handled)
        self._enter()
        try:
            yield
        finally:
            self._leave(handled)

    def is_about_to_return(self) -> bool:
        return self.program.instructions[self.now].opname in ("RETURN_VALUE", "RETURN_CONST")

    def _enter(self) -> None:
        context = self.context
        context.frames.append(self)
        context.handled += self.handling
        for overlay in context.overlays:
            overlay.enters(self)

    def _leave(self, handled: int) -> None:
        """`handled`: the number of exceptions that were being handled at entry."""
        context = self.context
        context.frames.pop()
        for overlay in context.overlays:
            overlay.leaves(self)
        if context.overlays and context.overlays[-1].frame is self:
            context.overlays.pop().hide()
        self.handling = context.handled[handled:]
        del context.handled[handled:]

    def _begin_step(self, outermost: bool) -> None:
        context = self.context
        self.began = context.step
        if context.step == context.stop_at:
            raise StopAtBreak(list(context.frames), list(context.handled))
        if outermost:
            context.outer_steps.append(context.step)
        context.step += 1
        context.direct = None
        self.pc = self.now + 1

    def _caught(self, pc: int, raised: Raised) -> bool:
        """Go to the handler of an exception that instruction `pc` raised. False: the exception leaves the frame."""
        if raised.frames is None:
            raised.frames = list(self.context.frames)
        self.pc = pc + 1
        self.passed.add(pc)
        return self.unwind(pc, raised)

    def run_generator(self) -> Value | None:
        """Run to the next yield. Returns the yielded value, or None when the frame returned."""
        return self.result if self.run() is YIELDED else None

    def located(self, error: Unsupported) -> Unsupported:
        if error.place is not None:
            return error
        stack = "".join(f"\n    {frame.place()}" for frame in self.context.frames)
        hint = break_hint(error.kind, error.hint)
        located = Unsupported(error.kind, error.reason, place=self.place(), hint=hint)
        self.context.broken = located, list(self.context.frames)
        if len(self.context.frames) > 1:
            located.args = (f"{located.args[0]}\n  The calls that led there:{stack}",)
        return located

    def is_added(self) -> bool:
        """Whether resume code added the running instruction, to restore the stack behind a break."""
        resumption = self.program.resumption
        return resumption is not None and resumption.indices[self.now] is None

    def place(self) -> UserPlace:
        """The user's line of the running instruction. An instruction that ends a block has no line; then the line of
        the instruction before it."""
        code = self.program.code
        lines = (self.program.instructions[index].line for index in range(self.now, -1, -1))
        line = next(filter(None, lines), code.co_firstlineno)
        key = code.co_filename, line, self.name
        return self.context.places.get(key) or self.context.places.setdefault(key, UserPlace(*key))

    def waits_in_try(self) -> bool:
        """Whether closing a generator, which waits at a yield in this frame, runs code of the user: a `finally`, the
        end of a `with`, or a handler that may catch GeneratorExit."""
        instructions = self.program.instructions
        region = instructions[self.now].handler
        while region is not None:
            at = region.target.index
            if instructions[at].opname.startswith("CALL_INTRINSIC"):
                return False  # the wrapper that 3.12 puts around every generator
            if instructions[at].opname == "CLEANUP_THROW":  # the wrapper around each `yield from`
                region = instructions[at].handler
                continue
            if instructions[at].opname == "PUSH_EXC_INFO":
                at += 1
                while instructions[at + 1].opname == "CHECK_EXC_MATCH" and self._lets_generator_exit_pass(at):
                    jump = instructions[at + 2]
                    at = at + 3 if jump.target is None else jump.target.index
            elif [instruction.opname for instruction in instructions[at : at + 2]] == ["COPY", "POP_EXCEPT"]:
                at += 2
            if instructions[at].opname != "RERAISE":
                return True
            region = instructions[at].handler
        return False

    def _lets_generator_exit_pass(self, at: int) -> bool:
        """Whether `except NAME` does not catch GeneratorExit; instruction `at` loads the name."""
        load = self.program.instructions[at]
        if load.opname != "LOAD_GLOBAL":
            return False
        wanted = self.globals.names.get(load.argval, vars(builtins).get(load.argval))
        return isinstance(wanted, type) and not issubclass(GeneratorExit, wanted)

    def unwind(self, pc: int, raised: Raised) -> bool:
        """Go to the handler of the try region around instruction `pc`. False: the exception leaves the frame. (Raising
        it here would close a reference cycle, which keeps the program's objects alive.)"""
        region = self.program.instructions[pc].handler
        if region is None:
            if raised.value.source is not None and self.context.frames[0] is not self:
                raise unsupported(
                    "exception", "an exception that was there before leaves a function, as its traceback shows"
                )
            return False
        self._let_go(region.depth)
        if raised.value.caught_at is None:  # type: ignore[attr-defined]
            raised.value.caught_at = self.context.end_step()  # type: ignore[attr-defined]
        if region.lasti:
            self.stack.append(LastInstruction(0))
        self.stack.append(raised.value)
        self.pc = region.target.index
        return True

    def _let_go(self, depth: int) -> None:
        """Drop the values on the stack above `depth`, the top first."""
        for gone in reversed(self.stack[depth:]):
            check_variable(self, gone)
        del self.stack[depth:]


def follow_rest(
    context: CaptureContext, function: FunctionType, cells: tuple[CellValue, ...], args: list[Value]
) -> Value:
    """The result of resume code, which goes on with a function behind a graph break, with the cells of its closure."""
    code = function.__code__
    names = dict(zip(code.co_varnames, args, strict=False))
    resumption = resumption_of(code)
    for name, cell in zip(closure_of(code), cells, strict=True):
        cell.private |= resumption is not None and name in resumption.point.private_cells
    frame = Frame(context, prepare_code(code), context.scope_of(function.__globals__), names, cells, code.co_qualname)
    frame.called = True
    frame.run()
    assert frame.result is not None
    return frame.result
