"""The entry to symbolic execution: a frame in, a `CapturedFrame` out. Decides where a graph has to end."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from stator.base import config, counters
from stator.base.errors import Unsupported
from stator.dynamo.ir.capture_assumptions import NO_ASSUMPTIONS, CaptureAssumptions, GraphEnd, Retry

from . import handlers
from .graph import input_facts
from .graph.possible_views import settle_views
from .guards.global_state import read_global_state
from .guards.guard import Guard, GuardKind
from .guards.source import (
    AttrSource,
    CellSource,
    FunctionSource,
    ItemSource,
    LocalSource,
    ReadSource,
    SizeSource,
)
from .handlers import opcodes, polyfills
from .host.break_kinds import PROGRAM_ERRORS, break_hint
from .host.naming import class_name, is_python_class
from .interpreter.capture_context import FrameCapture
from .interpreter.changing_values import changing_locals, varying_places
from .interpreter.frame import Frame, StopAtBreak
from .interpreter.generators import GeneratorValue
from .interpreter.nested_break import calls_of_a_module, left_together, namespace_of_modules, receiver_of, user_code
from .interpreter.numpy_frames import outside_numpy
from .interpreter.reconstruction import FrameReconstructor
from .interpreter.release_capture_state import dismantle
from .interpreter.varying_loops import loop_counters
from .interpreter.wrapping import CONSTANT_TYPES
from .ir.capture_result import Break, BreakReason, CapturedFrame, InnerFrame, Return
from .ir.prepared_code import callees_read_frames, item_parameter, prepare_code, reads_no_frame
from .ir.reconstruct_ir import ConstantRecipe, Effect, Load, RaisedAt, Recipe
from .ir.related_sizes import related_sizes
from .ir.resume import closure_of, resumption_of
from .ir.torch_state import TorchState, forward_ad_guard
from .values.base import CannotRebuild, CaptureContext, Lazy, Raised, Value, unsupported
from .values.constants import ConstantValue, LastInstruction, SourcedConstant
from .values.containers.sequences import ListValue, TupleValue
from .values.containers.slices import RangeValue, SliceValue
from .values.deferred_text import PendingTextValue
from .values.objects import ObjectValue
from .values.scopes import CellValue, is_empty
from .values.symbolic_numbers import SymbolicNumber
from .values.tensors.tensor import TensorValue

_REGISTERED = (handlers, input_facts, opcodes, polyfills)  # importing them fills the registries


def capture(
    function: FunctionType,
    arguments: dict[str, object],
    assumptions: CaptureAssumptions = NO_ASSUMPTIONS,
    *,
    fullgraph: bool = False,
    unknown_sizes: bool = True,
    kernels_warn: bool = True,
    dynamic: bool | None = None,
) -> CapturedFrame:
    """Execute `function` symbolically on `arguments` (parameter name -> object, as bound for the frame), once.

    unknown_sizes: operators whose result size depends on data stay in the graph; otherwise the graph ends before them.
    kernels_warn: the backend runs torch's kernels, which warn by themselves.
    dynamic: all sizes of inputs are symbols (True), or none (False), or those that changed between calls (None).

    Raises Retry if the frame has to be captured again; Unsupported if nothing can be captured soundly, or, with
    fullgraph, if the whole frame cannot be one graph. Any other exception is a defect of stator.
    """
    attempt = _Attempt(function, arguments, assumptions, unknown_sizes, fullgraph, kernels_warn, dynamic)
    try:
        captured = attempt.run()
    except Retry as retry:
        _forget_frames(retry, attempt.handled)
        if not fullgraph or retry.assumptions.end is None:
            raise
        if assumptions.changes and not assumptions.relies_on_changes:
            raise Retry(assumptions.relying_on_changes()) from None
        if attempt.has_symbols and not assumptions.fixed_sizes and retry.error is not None:
            raise Retry(assumptions.with_fixed_sizes(retry.error.reason)) from None
        first = assumptions.error_when_compiling
        error = retry.error if first is None else first.reason.as_error()
    else:
        counters.count("captured_frames")
        return captured
    assert error is not None
    try:
        raise error from error.__cause__
    finally:
        del error  # this frame is part of the error's traceback, and must not keep the error alive


def _forget_frames(error: BaseException | None, of_program: BaseException | None) -> None:
    """Drop the tracebacks of an exception and of its causes: their frames hold the program's objects, and may hold the
    exception. `of_program`, the exception that the program is handling, keeps its traceback."""
    seen: set[int] = {id(of_program)}
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            waiting += [one.__cause__, one.__context__]


class _Attempt:
    """One symbolic run of the frame. With an assumed end, it stops before that step, maybe in a called frame."""

    def __init__(
        self,
        function: FunctionType,
        arguments: dict[str, object],
        assumptions: CaptureAssumptions,
        unknown_sizes: bool = True,
        fullgraph: bool = False,
        kernels_warn: bool = True,
        dynamic: bool | None = None,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.assumptions = assumptions
        self.unknown_sizes = unknown_sizes
        self.fullgraph = fullgraph
        self.kernels_warn = kernels_warn
        self.dynamic = dynamic
        self.has_symbols = False  # for sizes that the program has not promised to change
        self.entry_state = TorchState.now()
        self.running: Sequence[Frame] = ()  # the symbolic frames at the end of the attempt
        self.handled = sys.exception()  # the program's exception: stator handles none here

    @property
    def reason(self) -> BreakReason:
        assert self.assumptions.end is not None
        return self.assumptions.end.reason

    def run(self) -> CapturedFrame:
        context = FrameCapture(self.function, self.assumptions, self.dynamic)
        context.recorder.mode.keeps_unknown_sizes = self.unknown_sizes and not self.assumptions.known_sizes
        context.recorder.fullgraph = self.fullgraph
        context.recorder.kernels_warn = self.kernels_warn
        try:
            return self._run(context)
        finally:
            sizes = context.recorder.numbers.inputs
            self.has_symbols = sizes.has_symbols and not sizes.has_promises
            context.recorder.forget()
            dismantle((self.running, *(held for name, held in vars(context).items() if name != "_keep")))
            self.running = ()
            # lists and constants of the program refer to the context, and would keep these values until a collection
            vars(context).clear()
            self.entry_state.restore()

    def _run(self, context: FrameCapture) -> CapturedFrame:
        context.guards.made.append(Guard(FunctionSource(), GuardKind.GLOBAL_STATE, read_global_state()))
        context.guards.made.append(forward_ad_guard())
        frame = self._frame(context)
        self.running = (frame,)
        try:
            frame.run()
        except StopAtBreak as stop:
            self.running = stop.frames
            return self._stopped(context, stop)
        except Unsupported as error:
            context.loops.settle()
            raise self._retry(context, error, _running(context, frame, error)) from error
        except Raised as raised:
            context.loops.settle()
            raise self._retry(context, self._uncaught(context, frame, raised), raised.frames or [frame]) from raised
        context.loops.settle()
        return self._finished(context, frame)

    def _frame(self, context: FrameCapture) -> Frame:
        code = self.function.__code__
        values: dict[str, Value] = {
            name: Lazy(value, LocalSource(name)) for name, value in self.arguments.items() if name in code.co_varnames
        }
        resumption = resumption_of(code)
        private = () if resumption is None else resumption.point.private_cells
        closure = tuple(
            _free_cell(name, cell, private=name in private)
            for name, cell in zip(closure_of(code), self.function.__closure__ or (), strict=True)
        )
        for index, cell in enumerate(closure):
            context.real_cells[id(cell.cell)] = cell
            if cell.content is None:
                source = ItemSource(AttrSource(FunctionSource(), "__closure__"), index)
                context.guard(source, GuardKind.PREDICATE, is_empty)
        scope = context.scope_of(self.function.__globals__, None, self.function.__builtins__)  # type: ignore[attr-defined]
        context.owned_arguments = {name: value for name, value in values.items() if _end_shows(value)}
        frame = Frame(context, prepare_code(code), scope, values, closure, code.co_qualname)
        if self.assumptions.end is not None:
            context.stop_at = self.assumptions.end.step
        self._go_on_handling(context, frame)
        item = item_parameter(code)
        if item is not None:
            context.expected.add(LocalSource(item))
        context.expected.update(LocalSource(name) for name in loop_counters(frame.program, self.arguments))
        resumption = frame.program.resumption
        if resumption is not None and not self.assumptions.relies_on_changes:
            context.varying.update(map(LocalSource, resumption.point.varying))
            sizes = context.recorder.numbers.inputs
            sizes.varying.update(context.varying)
            if any(type(one) is SizeSource for one in self.assumptions.changes):  # as before the break
                sizes.varying.update(map(LocalSource, resumption.point.values_of_stacks()))
        return frame

    def _go_on_handling(self, context: FrameCapture, frame: Frame) -> None:
        """Resume inside the exception handlers in which the frame was left."""
        resumption = frame.program.resumption
        if resumption is None or not resumption.point.handlers:
            return
        point = resumption.point
        if self.handled is None:
            raise unsupported("raise", "a running exception handler whose exception is no longer the current one")
        frame.handlers = list(point.handlers)
        frame.handlers_kept = len(frame.handlers)
        for position in point.handlers[1:]:  # an inner handler keeps the exception of the handler around it
            name = point.stack_parameter(position)
            frame.handling.append(context.wrap(self.arguments[name], LocalSource(name)))
        frame.handling.append(context.wrap(self.handled, ReadSource(sys.exception)))

    def _retry(
        self, context: FrameCapture, error: Unsupported, frames: Sequence[Frame], step: int | None = None
    ) -> Retry:
        """`frames`: the frames that were running when the error came up."""
        reason = _reason_of(error)
        if step is None:
            frames, at_call = outside_numpy(frames, error)
            last = self._last_left(context, frames)
            if at_call is not None and last is frames[-1]:
                reason = _reason_of(last.located(at_call))
            step = last.began
        end, assumed = self._end(context, step, reason), self.assumptions
        # an attempt may have fewer steps than the one before, whose lookups imported a module (`np.random`)
        if assumed.end is not None and end.step >= assumed.end.step:
            raise error  # the state at the break cannot be handed over
        if error.kind == "torch-error":
            end = replace(end, guards=_guards_of_error(context))
        elif error.kind == "varying-loop":
            end = replace(end, guards=context.loops.guards)
        if error.kind in PROGRAM_ERRORS:
            if assumed.error_when_compiling is not None:  # the program fails with either answer
                answered_yes = replace(assumed, says_compiling=True)
                return Retry(answered_yes.ending(assumed.error_when_compiling), error)
            if assumed.says_compiling and context.asked_whether_compiling:
                counters.count("dynamo.told_not_compiling")
                return Retry(assumed.not_saying_compiling(end), error)
        return Retry(assumed.ending(end), error)

    def _end(self, context: FrameCapture, step: int, reason: BreakReason) -> GraphEnd:
        outer = bisect_right(context.outer_steps, step) - 1
        if not self.assumptions.nested:
            step = context.outer_steps[outer]
        return GraphEnd(step, reason, context.outer_steps[max(outer, 0) // 2] if context.outer_steps else step)

    def _last_left(self, context: FrameCapture, frames: Sequence[Frame]) -> Frame:
        """The innermost frame in which the graph is to end. If nothing is compiled before the end, the outermost frame
        runs its own code up to its call. Frames that already resume together stay together if possible (`_ended`),
        unless that gave no graph at many places."""
        outermost = frames[0]
        runs = _may_run_as_it_is(context) and outermost.now not in outermost.passed
        if not self.assumptions.nested or (runs and outermost.program.finishes_call < 0):
            return outermost
        innermost = left_together(frames)[-1]
        if not context.recorder.op_count and user_code(innermost.program.code) in self.assumptions.called_apart:
            return outermost
        return innermost

    def _stopped(self, context: FrameCapture, stop: StopAtBreak) -> CapturedFrame:
        """End the graph at the assumed end, or, if it cannot end inside of a called function, before the outermost
        call."""
        outermost, end = stop.frames[0], self.assumptions.end
        assert end is not None
        if self._last_left(context, stop.frames) is not stop.frames[-1]:
            error = unsupported("reconstruct", "frames that cannot be left together")
            raise self._earlier(context, outermost.located(error), outermost.began)
        if len(stop.frames) > 1 and stop.frames[-1].is_about_to_return():
            error = unsupported("reconstruct", "a called function of which only its return is left")
            raise self._earlier(context, outermost.located(error), end.step - 1)
        try:
            return self._ended(context, stop.frames, stop.handled)
        except CannotRebuild as error:
            if error.made_at is not None and error.made_at < end.step:
                raise self._earlier(context, error, error.made_at) from error
            if len(stop.frames) == 1:
                raise outermost.located(error) from error
            raise self._earlier(context, error, outermost.began) from error
        except Unsupported as error:
            if len(stop.frames) == 1:
                raise
            raise self._earlier(context, error, outermost.began) from error

    def _earlier(self, context: FrameCapture, error: Unsupported, step: int) -> Retry:
        reason = self.reason
        if reason.kind == "numpy-function":  # its call is later
            reason = replace(reason, kind=error.kind, hint=break_hint(error.kind, None))
        end = replace(self._end(context, step, reason), guards=self.assumptions.end.guards)  # type: ignore[union-attr]
        return Retry(self.assumptions.ending(end), error)

    def _uncaught(self, context: FrameCapture, frame: Frame, raised: Raised) -> Unsupported:
        value: Any = raised.value
        text = f"{class_name(value.python_type(context))}: {value.message(context)}"
        return Unsupported("exception", f"the program raises {text}", place=value.place or frame.place())

    # -- exits --
    def _finished(self, context: FrameCapture, frame: Frame) -> CapturedFrame:
        if self.assumptions.leaves_small or _may_run_as_it_is(context):
            return self._captured(frame, None, [], Return(_IN_PLACE))
        reconstructor = FrameReconstructor(context)
        assert frame.result is not None
        try:
            value = reconstructor.recipe(frame.result)
            effects = self._effects(reconstructor, ends=True)
        except CannotRebuild as error:
            raise self._retry(context, frame.located(error), [frame], error.made_at) from error
        except Unsupported as error:
            raise self._retry(context, frame.located(error), [frame]) from error
        return self._captured(frame, reconstructor, effects, Return(value))

    def _ended(self, context: FrameCapture, frames: Sequence[Frame], handled: Sequence[Value]) -> CapturedFrame:
        """The graph ends in these frames, each of which called the next."""
        frame = frames[0]
        reconstructor = FrameReconstructor(context)
        runs = self.assumptions.leaves_small or _may_run_as_it_is(context)
        if len(frames) == 1 and runs and frame.now not in frame.passed:
            return self._captured(frame, None, [], self._reached(frame))
        running = handled[len(handled) - len(frame.handlers) :]  # no inner frame runs a handler
        handlers = tuple(zip(frame.handlers, map(reconstructor.recipe, running), strict=True))
        stack = _stack(reconstructor, frame)
        names = _locals(reconstructor, frame)
        cells: dict[str, Recipe] = {name: reconstructor.variable_cell(cell) for name, cell in frame.cells.items()}
        inner = [(called, one) for called in frames[1:] for one in _inner_frames(reconstructor, called)]
        effects = self._effects(reconstructor, ends=False)
        private = _private_cells(reconstructor, frame, cells)
        left = tuple(
            replace(one, private_cells=_private_cells(reconstructor, called, one.cells)) for called, one in inner
        )
        if inner and _may_run_as_it_is(context) and not reconstructor.only_reads():
            raise unsupported("reconstruct", "new objects on the way to a break before which nothing is compiled")
        varying, changing = varying_places(frame, self.reason), changing_locals(frame)
        exit_ = Break(
            frame.now, stack, names, cells, self.reason, handlers, frame.handlers_kept, left, private, varying, changing
        )
        return self._captured(frame, reconstructor, effects, exit_)

    def _reached(self, frame: Frame) -> Break:
        """The break as the frame's own code reaches it, where every value is in its place. The original code passes
        the break once, so that it can be left there."""
        stack = tuple(
            RaisedAt() if isinstance(value, LastInstruction) else None if value is None else _IN_PLACE
            for value in frame.stack
        )
        kept = _locals_to_keep(frame)
        receiver = receiver_of(frame.program.code)
        names = {
            name: _IN_PLACE
            for name, value in frame.locals.items()
            if kept is None or name in kept or name == receiver or _may_be_watched(value)
        }
        handlers = tuple((position, _IN_PLACE) for position in frame.handlers)
        cells = dict.fromkeys(frame.cells, _IN_PLACE)
        kept_handlers, varying, changing = (
            frame.handlers_kept,
            varying_places(frame, self.reason),
            changing_locals(frame),
        )
        return Break(
            frame.now, stack, names, cells, self.reason, handlers, kept_handlers, varying=varying, changing=changing
        )

    def _effects(self, reconstructor: FrameReconstructor, *, ends: bool) -> list[Effect]:
        """`ends`: the frame returns."""
        modes = [
            *self.entry_state.effects_since(),
            *handlers.device_contexts.entered(reconstructor.context.devices),
            *handlers.function_modes.entered(reconstructor),
        ]
        reconstructor.replay(ends=ends)
        for generator in reconstructor.context.generators:
            if not reconstructor.is_made(generator):
                generator.rely_on_no_cleanup()
        reconstructor.rely_on_distinct_inputs()
        reconstructor.rely_on_distinct_objects()
        reconstructor.rely_on_distinct_iterators()
        # includes draws whose numbers are unused
        drawn = [Effect(draw) for draw in reconstructor.context.draws]
        changes = [
            *reconstructor.steps,
            *reconstructor.marks,
            *reconstructor.fills,
            *reconstructor.effects,
            *reconstructor.late,
        ]
        return [*drawn, *changes, *modes]

    def _captured(
        self, frame: Frame, reconstructor: FrameReconstructor | None, effects: list[Effect], exit_: Return | Break
    ) -> CapturedFrame:
        """`reconstructor` is None if the frame's own code runs up to the exit."""
        context = frame.context
        context.guard_what_was_found()
        outputs = [] if reconstructor is None else reconstructor.outputs
        settle_views(context.recorder, outputs)
        graph = None if reconstructor is None else context.recorder.finish(outputs)
        if graph is None and outputs:
            raise unsupported("reconstruct", "a tensor without a graph")
        self._expect_changes(context)
        return CapturedFrame(
            self.function,
            self.function.__code__,
            graph,
            context.recorder.inputs,
            effects,
            exit_,
            self._guards(context.guards.made),
            context.recorder.op_count,
            [] if self.assumptions.end is None else [self.reason],
            None if reconstructor is None else self._handled_before(frame),
            self.entry_state,
            context.recorder.side_effects(),
            list(context.draws),
            runs_original=reconstructor is None,
            may_run_original=self._may_run_original(frame, exit_),
            sizes=context.recorder.numbers.inputs,
        )

    def _expect_changes(self, context: CaptureContext) -> None:
        """Raises Retry if further numbers likely change with the sizes that have changed, or if the program needs one
        value of an int: with a constant, questions that came before need no facts."""
        sizes, changes = context.recorder.numbers.inputs, context.mutations.state_changes()
        pinned = sizes.pinned_ints()
        if pinned and len(sizes.environment.facts) > len(pinned):
            raise Retry(self.assumptions.with_constants(pinned))
        related = related_sizes(sizes, context.guards.made, changes)
        if related and not self.assumptions.relies_on_changes:
            raise Retry(self.assumptions.expecting_changes(related))

    def _guards(self, made: list[Guard]) -> list[Guard]:
        end = self.assumptions.end
        return made if end is None else [*made, *(guard for guard in end.guards if guard not in made)]

    def _may_run_original(self, frame: Frame, exit_: Return | Break) -> bool:
        """Whether the frame's own code could run up to this exit, if what is compiled before it gains nothing."""
        if frame.context.recorder.unlike_eager or config.keep_empty_graphs:
            return False
        return isinstance(exit_, Return) or not (exit_.inner or frame.now in frame.passed)

    def _handled_before(self, frame: Frame) -> Recipe | None:
        """The exception handled before the handlers that were running at entry and have ended since."""
        resumption = frame.program.resumption
        if resumption is None or frame.handlers_kept == len(resumption.point.handlers):
            return None
        point = resumption.point
        return Load(LocalSource(point.stack_parameter(point.handlers[frame.handlers_kept])))


def _reason_of(error: Unsupported) -> BreakReason:
    assert error.place is not None
    return BreakReason(error.kind, error.reason, error.place, break_hint(error.kind, error.hint))


def _guards_of_error(context: FrameCapture) -> tuple[Guard, ...]:
    """The guards on tensors, numbers and sizes without which an error of torch might not come."""
    kinds = (GuardKind.TENSOR, GuardKind.EQUALS)
    made = [guard for guard in context.guards.made if guard.kind in kinds]
    return *made, *context.recorder.numbers.inputs.guards()


def _running(context: FrameCapture, frame: Frame, error: Unsupported) -> Sequence[Frame]:
    """The frames that were running when the error came up, as far as known."""
    return context.broken[1] if context.broken is not None and context.broken[0] is error else [frame]


def _may_run_as_it_is(context: FrameCapture) -> bool:
    """Whether the followed code contains nothing to compile, and behaves eagerly as it did when followed."""
    recorder = context.recorder
    return not recorder.op_count and not recorder.unlike_eager and not config.keep_empty_graphs


_IN_PLACE: Recipe = ConstantRecipe(None)  # stands for a value that is in its place already


def _locals_to_keep(frame: Frame) -> frozenset[str] | None:
    """Names of variables that may be read behind the break. None: all variables, because the code or a callee may read
    the frame's variables."""
    program = frame.program
    if not reads_no_frame(program.code) or callees_read_frames(program.code, frame.globals.names):
        return None
    return program.live_locals(frame.now)


def _locals(reconstructor: FrameReconstructor, frame: Frame) -> dict[str, Recipe]:
    kept = _locals_to_keep(frame)
    receiver = receiver_of(frame.program.code)
    return {
        name: reconstructor.recipe(value)
        for name, value in frame.locals.items()
        if kept is None or name in kept or name == receiver or _end_shows(value)
    }


def _cells_to_keep(frame: Frame) -> frozenset[str] | None:
    """Names of cell variables that the frame itself may still use, or whose death the program could observe. None:
    all."""
    program = frame.program
    if not reads_no_frame(program.code) or callees_read_frames(program.code, frame.globals.names):
        return None
    shown = (name for name, cell in frame.cells.items() if cell.content is not None and _end_shows(cell.content))
    return program.names_used(frame.now).union(shown)


def _stack(reconstructor: FrameReconstructor, frame: Frame) -> tuple[Recipe | None, ...]:
    return tuple(reconstructor.recipe(value) if value is not None else None for value in frame.stack)


def _inner_frames(reconstructor: FrameReconstructor, frame: Frame) -> Iterator[InnerFrame]:
    """The inner frames that resume a called frame: frames of module calls on the way, then the frame itself."""
    for code, index in calls_of_a_module()[: frame.module_frames]:
        yield InnerFrame(code, namespace_of_modules(), index)
    program = frame.program
    code = user_code(program.code)
    names = _locals(reconstructor, frame)
    kept = _cells_to_keep(frame)
    cells = [name for name in code.co_cellvars if name in frame.cells and (kept is None or name in kept)]
    yield InnerFrame(
        code,
        frame.globals.names,
        program.user_index(frame.now),
        _stack(reconstructor, frame),
        {name: names[name] for name in code.co_varnames if name in names and name not in frame.cells},
        {name: reconstructor.recipe(frame.cells[name]) for name in code.co_freevars}
        | {name: reconstructor.variable_cell(frame.cells[name]) for name in cells},
        changing=changing_locals(frame),
    )


def _private_cells(reconstructor: FrameReconstructor, frame: Frame, cells: Iterable[str]) -> tuple[str, ...]:
    """The names of those cells that only the frame holds, once all recipes have been made."""
    return tuple(name for name in cells if reconstructor.is_private(frame.cells[name]))


def _end_shows(value: Value) -> bool:
    """Whether the program could observe that a dead variable drops its object: objects other than tensors and
    constants may have finalizers and weak references."""
    if isinstance(value, (Lazy, SourcedConstant)):
        kind = type(value.obj if isinstance(value, Lazy) else value.peek())
        # instances of a program's subclass of float can be referred to weakly
        return not (issubclass(kind, torch.Tensor) or (type(kind) is type and kind in CONSTANT_TYPES))
    if isinstance(value, (TensorValue, ConstantValue, SymbolicNumber)):
        return False
    if isinstance(value, GeneratorValue):
        return value.started and value.returned is None and value.frame.waits_in_try()
    if isinstance(value, ObjectValue):  # containers included
        return type(value) is ObjectValue or value.source is not None or is_python_class(value.cls)
    return value.source is not None


def _may_be_watched(value: Value, depth: int = 3) -> bool:
    """Whether objects that a variable keeps alive may have finalizers or weak references."""
    if _end_shows(value):
        return True
    if isinstance(value, (ListValue, TupleValue)) and value.cls in (list, tuple):
        return depth == 0 or any(_may_be_watched(item, depth - 1) for item in value.items)
    return not isinstance(value, _UNWATCHED)


_UNWATCHED = (Lazy, TensorValue, ConstantValue, SymbolicNumber, RangeValue, SliceValue, PendingTextValue)


def _free_cell(name: str, cell: Any, *, private: bool) -> CellValue:
    try:
        content: Value | None = Lazy(cell.cell_contents, CellSource(name))
    except ValueError:
        content = None
    return CellValue(content, None, cell, name, private=private)
