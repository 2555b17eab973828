"""Around the call of a graph: where it raises, torch's modes are put back, and the frame begins anew as the program's
own code where that is as if the graph had never begun. Which graphs those are is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stator.dynamo.bytecode import Handler
from stator.dynamo.guards.guard_tree import bound_count
from stator.dynamo.host.native_status import native
from stator.dynamo.ir.capture_result import Break
from stator.dynamo.ir.reconstruct_ir import Recipe
from stator.dynamo.ir.resume import closure_of

from .writer import Writer


@dataclass(frozen=True, slots=True)
class FailureHandling:
    """What emitted code calls for a graph that raises.

    states: called before anything is drawn for the graph, with the objects that `generators` make; None: there is
        nothing to be remembered.
    begins_anew: called with the error, and with what `states` gave: does the frame begin anew?
    again: takes the cells of the frame's closure, then the values that it was entered with; what it gives is returned
        at once.
    """

    begins_anew: Callable[..., bool]
    again: Callable[..., Any]
    states: Callable[..., Any] | None = None
    generators: Sequence[Recipe] = ()


class GraphCall:
    """Writes the call of the graph, and what is done where it fails. Without FailureHandling, errors leave."""

    def __init__(self, writer: Writer, on_failure: FailureHandling | None) -> None:
        self.writer = writer
        self.on_failure = on_failure
        self.handler = Handler(writer.builder.label(), 0, lasti=False)
        self.states = ""  # the temporary that remembers

    def begin(self) -> None:
        """Stands before the instructions that load the graph and its inputs, where the stack is empty."""
        if self.on_failure is not None and self.on_failure.states is not None:
            self.states = self.writer.temporary()
            self.writer.builder.const_callee(self.on_failure.states)
            for generator in self.on_failure.generators:
                self.writer.load(generator)
            self.writer.builder.call(len(self.on_failure.generators))
            self.writer.builder.store(self.states)

    def call(self, count: int) -> None:
        """graph, so many inputs -> outputs"""
        builder = self.writer.builder
        first = len(builder.instructions)
        builder.call(count)
        if self.on_failure is not None and isinstance(self.writer.captured.exit, Break):
            # what came while the graph ran is raised while modes can be put back, not in the middle of effects
            builder.const_callee(native.check_signals)
            builder.call(0)
            builder.pop()
        if self.on_failure is not None:
            # 3.13 looks an exception that leaves a called Python function up one unit before the call
            for instruction in builder.instructions[first - 1 :]:
                instruction.handler = self.handler
        if self.states:
            self.writer.clear_temporaries([self.states])

    def fails_from(self, first: int) -> None:
        """What is written since that instruction, before the graph runs, fails as the graph does."""
        if self.on_failure is not None:
            for instruction in self.writer.builder.instructions[first:]:
                instruction.handler = self.handler

    def write_failure(self) -> None:
        """error -> , behind everything else: return what begins the frame anew, or let the error out."""
        if self.on_failure is None:
            return
        builder = self.writer.builder
        first = len(builder.instructions)
        builder.append(self.handler.target)
        out = builder.label()
        builder.const_callee(self.on_failure.begins_anew)
        builder.duplicate(3)
        if self.states:
            builder.load_bound(self.states)
        builder.call(1 + bool(self.states))
        builder.jump_if_false(out)
        builder.const_callee(self.on_failure.again)
        self._call_with_entry()
        builder.swap(2)
        builder.pop()  # the error, and with it what the graph had computed
        builder.return_value()
        builder.append(out)
        builder.reraise()
        for instruction in builder.instructions[first:]:
            instruction.handler = self.writer.leave_handler

    def _call_with_entry(self) -> None:
        """callee -> the result of calling it with what the frame was entered with"""
        code, builder = self.writer.code, self.writer.builder
        parameters = code.co_varnames[: bound_count(code)]
        closure = closure_of(code)
        for name in closure:
            builder.load_cell(name)
        for name in parameters:
            if name in self.writer.made_cells:
                builder.load_content(name)
            else:
                builder.load_bound(name)
        builder.call(len(closure) + len(parameters))
