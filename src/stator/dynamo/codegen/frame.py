"""The layout of an emitted frame: cells, graph call, effects, exit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

from stator.base.errors import CompileError
from stator.dynamo.bytecode import BytecodeError, assemble
from stator.dynamo.ir.capture_result import Break, CapturedFrame, Return
from stator.dynamo.ir.reconstruct_ir import FrameCell, GraphOutput
from stator.dynamo.ir.resume import closure_of, resumption_of, take_cells

from . import recipes as _recipes
from . import sources as _sources
from .breaks import BreakWriter, Hook, MakeResume
from .failures import FailureHandling, GraphCall
from .nested_exit import InnerCall, InnerCallWriter
from .writer import Writer

_REGISTERED = (_recipes, _sources)  # importing them registers their visitors


def emit(
    captured: CapturedFrame,
    compiled_graph: Callable[..., Any] | None,
    *,
    make_resume: MakeResume | None = None,
    dispatch: Callable[[Any], Any] | None = None,
    hook: Hook | None = None,
    on_failure: FailureHandling | None = None,
    inner: InnerCall | None = None,
    holds_parameters: bool = False,
) -> CodeType:
    """Code with the captured frame's signature that has the frame's results and effects.

    make_resume: makes the resume function for a `ResumePoint`. It takes the cells of the point's closure, the values of
        its locals, then the values of its stack; the frame returns its result. Needed if the capture ends in a break.
    dispatch: maps, at run time, the callee of a call at a break to a callable that compiles the frames it reaches.
    hook: turns the frame hook on and off around other operations at a break that may reach compilable code.
    on_failure: the handling of exceptions of the graph. None: they leave the frame.
    inner: the call of the inner frames, if the frame is left inside a call.
    holds_parameters: the code may keep parameters of the module alive, because the module outlives the code.
    Raises CompileError if no bytecode can express the frame.
    """
    writer = Writer(captured)
    try:
        _prologue(writer)
        writer.begin_guarded()
        call = GraphCall(writer, on_failure if compiled_graph is not None else None)
        if compiled_graph is not None:
            _call_graph(writer, compiled_graph, call, holds_parameters)
        if captured.effects:
            writer.preload_sources(writer.used_after_graph)
        for effect in captured.effects:
            writer.replay(effect)
        if isinstance(captured.exit, Return):
            writer.load(captured.exit.value)
            writer.end_guarded()
            writer.handle_as_before()
            writer.builder.return_value()
        elif make_resume is None:
            raise CompileError(
                "dynamo", f"the graph breaks, and no resume function can be made: {captured.exit.reason}"
            )
        else:
            _break_writer(writer, captured.exit, make_resume, dispatch, hook, inner).write()
        call.write_failure()
        writer.write_leaving()
        return _assemble(writer)
    except BytecodeError as error:
        raise CompileError("dynamo", f"emitted bytecode cannot be encoded: {error}") from error


def _break_writer(
    writer: Writer,
    exit_: Break,
    make_resume: MakeResume,
    dispatch: Callable[[Any], Any] | None,
    hook: Hook | None,
    inner: InnerCall | None,
) -> BreakWriter:
    if not exit_.inner:
        return BreakWriter(writer, exit_, make_resume, dispatch, hook)
    if inner is None:
        raise CompileError("dynamo", f"the graph breaks inside of a call, and no restorer was given: {exit_.reason}")
    return InnerCallWriter(writer, exit_, make_resume, inner)


def _prologue(writer: Writer) -> None:
    code, builder = writer.code, writer.builder
    builder.position = (code.co_firstlineno, code.co_firstlineno, 0, 0)
    writer.made_cells = _cells_needed(writer)
    for name in writer.made_cells:
        builder.make_cell(name)
    resumption = resumption_of(code)
    take_cells(builder, closure_of(code)[len(code.co_freevars) :], closure_of(code))
    builder.resume()
    if resumption is not None and resumption.first_call is not None:
        builder.const_callee(resumption.first_call)
        builder.call(0)
        builder.pop()


def _cells_needed(writer: Writer) -> tuple[str, ...]:
    """Cell variables of the frame that must be made, in the frame's order."""
    needed = {recipe.name for recipe in writer.used_recipes if isinstance(recipe, FrameCell)}
    if isinstance(writer.captured.exit, Break):
        needed.update(writer.captured.exit.cells)
    needed.difference_update(closure_of(writer.code))
    return tuple(name for name in writer.code.co_cellvars if name in needed)


def _call_graph(writer: Writer, compiled_graph: Callable[..., Any], call: GraphCall, holds_parameters: bool) -> None:
    captured, builder = writer.captured, writer.builder
    call.begin()
    builder.const_callee(compiled_graph)
    first_draw = len(builder.instructions)
    for draw in captured.draws:
        writer.load(draw)
        builder.pop()
    call.fails_from(first_draw)  # a draw may differ from the prediction, and raise
    for entry in captured.inputs:
        if entry.is_static and holds_parameters:
            builder.const(entry.example)
        elif entry.is_static:
            # an identity guard without a strong reference protects the tensor; the code must not keep it alive either
            builder.const_callee(weakref.ref(entry.example))
            builder.call(0)
        else:
            writer.load(entry.recipe)
    call.call(len(captured.inputs))
    count = _output_count(captured)
    builder.unpack(count)
    used = {recipe.index for recipe in writer.used_recipes if isinstance(recipe, GraphOutput)}
    for index in range(count):
        if index in used:
            writer.output_slots[index] = slot = writer.temporary()
            builder.store(slot)
        else:
            builder.pop()


def _output_count(captured: CapturedFrame) -> int:
    assert captured.graph is not None
    for node in reversed(captured.graph.graph.nodes):
        if node.op == "output":
            return len(node.args[0])
    raise CompileError("dynamo", "the captured graph has no output node")


def _assemble(writer: Writer) -> CodeType:
    code = writer.code
    names = code.co_varnames + tuple(writer.temporaries)
    return assemble(writer.builder.instructions, code, co_varnames=names, co_nlocals=len(names))
