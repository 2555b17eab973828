"""The handling of a graph call that raises: restore torch's modes, and start the frame again with the program's own
code if no effect of the graph remains. Which graphs qualify is decided in cache/graph_fallback.py."""

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
    """The functions that emitted code calls around a graph that may raise.

    states: called before the graph draws random numbers, with the objects that `generators` rebuild; None: the graph
        draws none.
    begins_anew: called with the error and the result of `states`; returns whether the frame starts again.
    again: takes the cells of the frame's closure, then the frame's arguments; the frame returns its result.
    """

    begins_anew: Callable[..., bool]
    again: Callable[..., Any]
    states: Callable[..., Any] | None = None
    generators: Sequence[Recipe] = ()


class GraphCall:
    """Writes the graph call and its exception handler. Without FailureHandling, exceptions leave the frame."""

    def __init__(self, writer: Writer, on_failure: FailureHandling | None) -> None:
        self.writer = writer
        self.on_failure = on_failure
        self.handler = Handler(writer.builder.label(), 0, lasti=False)
        self.states = ""  # the temporary with the result of `states`

    def begin(self) -> None:
        """Write this before the instructions that load the graph and its inputs, while the stack is empty."""
        if self.on_failure is not None and self.on_failure.states is not None:
            self.states = self.writer.temporary()
            self.writer.builder.const_callee(self.on_failure.states)
            for generator in self.on_failure.generators:
                self.writer.load(generator)
            self.writer.builder.call(len(self.on_failure.generators))
            self.writer.builder.store(self.states)

    def call(self, count: int) -> None:
        """graph, `count` inputs -> outputs"""
        builder = self.writer.builder
        first = len(builder.instructions)
        builder.call(count)
        if self.on_failure is not None and isinstance(self.writer.captured.exit, Break):
            # signals that arrived while the graph ran raise here, where modes can still be restored, not in the middle
            # of effects
            builder.const_callee(native.check_signals)
            builder.call(0)
            builder.pop()
        if self.on_failure is not None:
            # 3.13 looks up an exception of a called Python function one unit before the call
            for instruction in builder.instructions[first - 1 :]:
                instruction.handler = self.handler
        if self.states:
            self.writer.clear_temporaries([self.states])

    def fails_from(self, first: int) -> None:
        """Give the instructions written since `first`, which run before the graph, the graph's exception handler."""
        if self.on_failure is not None:
            for instruction in self.writer.builder.instructions[first:]:
                instruction.handler = self.handler

    def write_failure(self) -> None:
        """error -> . Written behind all other code: return the result of the restarted frame, or reraise the error."""
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
        builder.pop()  # drop the error, whose frames hold intermediate results of the graph
        builder.return_value()
        builder.append(out)
        builder.reraise()
        for instruction in builder.instructions[first:]:
            instruction.handler = self.writer.leave_handler

    def _call_with_entry(self) -> None:
        """callee -> the result of calling it with the frame's cells and arguments"""
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
