"""Leaving a frame at a graph break inside of a function that it called: the frame is put back as it is in the call, and
calls what does the same for the function, down to the frame with the operation that runs natively. What that returns,
from frame to frame, is what is still to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stator.dynamo.bytecode import Instruction
from stator.dynamo.host.native_status import native as native_module
from stator.dynamo.ir.call_completion import AGAIN, BELOW, TOLD, write_finish
from stator.dynamo.ir.capture_result import Break
from stator.dynamo.ir.prepared_code import program_of
from stator.dynamo.ir.resume import ResumePoint, Slot

from .breaks import BreakWriter, Hook, MakeResume, first_of_call
from .writer import Writer


@dataclass(frozen=True, slots=True)
class InnerCall:
    """The call of the next frame inside.

    callee: puts that frame back; it takes the values that `Break.inner_values` makes.
    make_joined: makes the callable that goes on with this frame, given what goes on with that one as the last argument.
    """

    callee: Callable[..., Any]
    make_joined: MakeResume


class InnerCallWriter(BreakWriter):
    """Writes the exit of a frame that is in a call."""

    def __init__(
        self,
        writer: Writer,
        exit_: Break,
        make_resume: MakeResume,
        dispatch: Callable[[Any], Any] | None,
        hook: Hook | None,
        call: InnerCall,
    ) -> None:
        super().__init__(writer, exit_, make_resume, dispatch, None)
        self.call = call

    def write(self) -> None:
        index = self.exit.index
        self.builder.position = self.original[index].position
        self._put_back(None, len(self.stack))
        reconstructor: list[Callable[[], None]] = []
        before = len(self.builder.instructions)
        self.builder.call((self.exit.finish in TOLD) + len(self.exit.inner_values()))
        native: list[Instruction] = self.builder.instructions[before:]
        del self.builder.instructions[before:]
        self._protect(native, reconstructor)
        self.builder.instructions += native
        self._continue_at(index + 1, [*self._slots(), Slot.VALUE], joined=True)
        for write_exit in reconstructor:
            write_exit()

    def _push_operands(self) -> None:
        self.builder.const_callee(self.call.callee)
        if self.exit.finish in TOLD:
            self.builder.duplicate(3)  # the object below the callable
        for value in self.exit.inner_values():
            self.writer.load(value)

    def _resume(self, point: ResumePoint, *, joined: bool) -> Any:
        return self.call.make_joined(point) if joined else self.make_resume(point)


def is_step_by_call(writer: Writer, exit_: Break) -> bool:
    """Whether a generator in which the graph ends was to give its next item to a call, not to a loop."""
    return program_of(writer.code).instructions[exit_.index].opname != "FOR_ITER"


class StepWriter(BreakWriter):
    """Writes the exit of a frame that calls what has a generator go on, in which the graph ends: `next`, whatever the
    program called. What the generator was sent or thrown has arrived there."""

    def write(self) -> None:
        index = self.exit.index
        builder = self.builder
        builder.position = self.original[index].position
        self._put_back(None, len(self.stack))
        reconstructor: list[Callable[[], None]] = []
        before = len(builder.instructions)
        builder.call(1)
        native: list[Instruction] = builder.instructions[before:]
        del builder.instructions[before:]
        self._protect(native, reconstructor)
        builder.instructions += native
        if self.exit.finish in AGAIN:
            self._collect(native)
            for write_exit in reconstructor:
                write_exit()
            return
        paused = self._jump_if_paused()
        builder.swap(2)
        builder.pop()  # the generator
        self._continue_at(index + 1, self._finished(native, [*self._slots(), Slot.VALUE], reconstructor))
        builder.append(paused)
        builder.pop()
        self._continue_at(index + 1, [*self._slots(), Slot.VALUE], steps=True, waiting=self.exit.waiting)
        for write_exit in reconstructor:
            write_exit()

    def _collect(self, native: list[Instruction]) -> None:
        """The instruction takes all items, and is done again on those that it has by now."""
        builder, finish = self.builder, self.exit.finish
        assert finish is not None
        before = len(builder.instructions)
        builder.swap(2)
        builder.pop()  # the generator
        write_finish(builder, finish, self.original[self.exit.index])
        for instruction in builder.instructions[before:]:
            instruction.handler = native[-1].handler
        index = self.exit.index
        is_made = index == program_of(self.writer.code).finishes_call
        again = index + 1 if is_made else first_of_call(self.original, index)
        self._continue_at(again, [*self._slots()[: -BELOW[finish]], Slot.VALUE], waiting=self.exit.waiting)

    def _push_operands(self) -> None:
        """-> the generator, what is called, the generator"""
        assert self.exit.steps is not None
        self.writer.load(self.exit.steps)
        self.builder.const_callee(native_module.step if self.exit.finish in AGAIN else next)
        self.writer.load(self.exit.steps)
