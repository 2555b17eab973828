"""The exit at a graph break inside of a called function: restore the frame as it is during the call, and call a
restorer that does this for the called function, down to the frame whose operation runs natively. Each returns the
continuation of its frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stator.dynamo.bytecode import Instruction
from stator.dynamo.ir.capture_result import Break
from stator.dynamo.ir.resume import ResumePoint, Slot

from .breaks import BreakWriter, MakeResume
from .writer import Writer


@dataclass(frozen=True, slots=True)
class InnerCall:
    """The call of the next inner frame.

    callee: the restorer of that frame; it takes the values of `Break.inner_values`.
    make_joined: makes the callable that resumes this frame; its last argument is the continuation of the inner frame.
    """

    callee: Callable[..., Any]
    make_joined: MakeResume


class InnerCallWriter(BreakWriter):
    """Writes the exit of a frame that is inside a call."""

    def __init__(self, writer: Writer, exit_: Break, make_resume: MakeResume, call: InnerCall) -> None:
        super().__init__(writer, exit_, make_resume, None)
        self.call = call

    def write(self) -> None:
        index = self.exit.index
        self.builder.position = self.original[index].position
        self._put_back(None, len(self.stack))
        reconstructor: list[Callable[[], None]] = []
        before = len(self.builder.instructions)
        self.builder.call(len(self.exit.inner_values()))
        native: list[Instruction] = self.builder.instructions[before:]
        del self.builder.instructions[before:]
        self._protect(native, reconstructor)
        self.builder.instructions += native
        self._continue_at(index + 1, [*self._slots(), Slot.VALUE], joined=True)
        for write_exit in reconstructor:
            write_exit()

    def _push_operands(self) -> None:
        self.builder.const_callee(self.call.callee)
        for value in self.exit.inner_values():
            self.writer.load(value)

    def _resume(self, point: ResumePoint, *, joined: bool) -> Any:
        return self.call.make_joined(point) if joined else self.make_resume(point)
