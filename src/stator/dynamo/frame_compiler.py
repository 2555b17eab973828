"""A frame that is about to run -> compiled frame: capture, backend, emission, and what is shown of them on the way."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakSet

import torch

from stator.base import counters, dumps, logs
from stator.base.errors import CompileError, Unsupported
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, Retry
from stator.dynamo.ir.capture_verifier import verify

from .backend import Settings, compile_graph
from .bytecode import decode, instructions_text
from .cache.compiled_frames import Install, make_cache
from .cache.entry import CompiledFrame, is_entry, make_entry, make_hook_callback
from .cache.graph_fallback import GraphFailure, generator_states
from .cache.recompile_limit import InnerCache
from .capture import capture
from .codegen import (
    FailureHandling,
    InnerCall,
    calls_something,
    emit,
    emit_generator,
    emit_original_frame,
    is_right_on_any_path,
)
from .codegen.nested_resume import (
    RestorerParts,
    frame_restorer,
    function_without_cells,
    inner_parameter_names,
    joined_function,
    never_called,
    restorer_key,
)
from .eager_frames import (
    generator_reason,
    is_generator_code,
    is_watched,
    log_eager_run,
    uncaptured_frame,
    worth_emitting,
)
from .guards.guard import Guard
from .guards.guard_filter import kept_guards
from .guards.source import is_in_local_class
from .host.code_marks import mark_as_ours
from .host.compile_directives import disabled, frame_disabled_by_torch
from .host.hook import call_with_hook, skip_frame
from .host.native_status import native
from .interpreter.nested_break import user_code
from .ir.capture_printer import captured_text
from .ir.capture_result import Break, CapturedFrame, Return
from .ir.covered_lines import line_reporter
from .ir.resume import ResumePoint, closure_of, resume_code, resumption_of

_MOST_PLACES = 128  # at which the frames of one code are resumed; each costs a compilation
_MOST_JOINED_PLACES = 1024  # at which they are, together with those of functions that they call

_MOST_WITHOUT_GRAPH = (
    16  # places at which frames of one function are left together with those around them, without a graph
)

Hook = tuple[Callable[[], object], Callable[[], object]]


class FrameCompiler:
    """Compiles frames under one set of settings, and keeps the resume functions that their breaks need."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._resumed: dict[tuple[int, int, ResumePoint, bool], Any] = {}
        # codes of which a frame failed when it was told that it is compiled
        self._fails_when_compiling: WeakSet[CodeType] = WeakSet()
        self._places: Counter[CodeType] = Counter()  # at which frames of a code are resumed
        self._joined: dict[tuple[int, int], Any] = {}  # by the ids of two continuations
        self._joined_places: Counter[CodeType] = Counter()  # the same, in a call
        # where frames of a function were left together with those around them, without a graph before
        self._without_graph: defaultdict[CodeType, WeakSet[CodeType]] = defaultdict(WeakSet)
        # functions of which that was at so many places that they no longer are; and code that goes on in several frames
        # and was compiled too often
        self._called_apart: WeakSet[CodeType] = WeakSet()
        self._generator_codes: dict[int, tuple[weakref.ref[CodeType], CodeType]] = {}  # by the ids of generators' code
        self._put_back: dict[Any, Any] = {}  # what puts frames back that are left together
        self._points: dict[int, tuple[dict[str, Any], ResumePoint]] = {}  # by a continuation's id
        self._module: weakref.ref[Any] | None = None  # whose forward has an entry of this compiler
        self._hook_callback = make_hook_callback(self.compile_frame, settings.options)

    # ---- callables ----

    def entry(self, function: FunctionType, module: Any = None) -> Callable[..., Any]:
        """The compiled twin of a function; of the forward of `module`, where a call of that comes to it."""
        settings = self.settings
        if module is not None:
            self._module = weakref.ref(module)
        return make_entry(function, self.compile_frame, settings.options, fullgraph=settings.fullgraph)

    def dispatch(self, callee: Any) -> Any:
        """A callable that calls `callee` and compiles the frames that start meanwhile."""
        if is_entry(callee) or type(callee) is native.Inner or disabled(callee) == "recursive":
            return callee
        alone = frame_disabled_by_torch(callee)
        if alone is not None:
            skip_frame(alone.__code__)
            callee = alone
        return partial(call_with_hook, self._hook_callback, callee)

    # ---- one frame ----

    def compile_frame(
        self, function: FunctionType, bound: Mapping[str, Any], assumptions: CaptureAssumptions, install: Install
    ) -> Any:
        """The way of a frame: decode, capture, verify, compile the graph, emit, install. Where a stage learns more than
        the capture went by, the frame is captured anew.

        Raises StatorError for what cannot be compiled (under fullgraph also for every graph break).
        """
        settings, code = self.settings, function.__code__
        module = self._module_among(bound)
        name = _frame_name(function, module)
        assumptions = self._with_lasting(assumptions, code)
        with dumps.compilation(name):
            dumps.show("bytecode", "00_bytecode.txt", partial(_text_of, code), f"original {name}")
            while True:
                try:
                    frame = self._uncaptured(function, bound)
                    captured = self._capture(function, bound, assumptions) if frame is None else None
                    if captured is None:
                        return install(frame or CompiledFrame((), None), assumptions)
                    if settings.options.verify:
                        verify(captured)
                    self._note(captured, name, assumptions)
                    emitted, gains = None, self._gains_by_emission(captured)
                    if gains:
                        if settings.on_captured is not None:
                            settings.on_captured(captured)
                        graph = compile_graph(captured, settings, name)
                        emitted = self._emit(captured, graph, name, assumptions, of_module=module is not None)
                    if emitted is not None and captured.runs_original and self._goes_on_apart(code):
                        return install(CompiledFrame((), emitted, last_resort=True), assumptions)
                    by_itself = _runs_by_itself(captured, emitted, gains)
                    frame = CompiledFrame(
                        self._guards(captured, bound, free=by_itself),
                        emitted,
                        followed=by_itself or (not gains and is_watched(captured)),
                        silent=emitted is not None and not captured.runs_original and captured.executed_lines is None,
                    )
                    return install(frame, assumptions)
                except Retry as retry:
                    assumptions = retry.after(assumptions)

    def _with_lasting(self, assumptions: CaptureAssumptions, code: CodeType) -> CaptureAssumptions:
        """With what captures of other frames taught."""
        if resumption_of(code) is None:
            self._fails_when_compiling.discard(code)
        told = user_code(code) not in self._fails_when_compiling
        return replace(assumptions, called_apart=frozenset(self._called_apart), says_compiling=told)

    def _module_among(self, bound: Mapping[str, Any]) -> Any:
        """The compiled module, where the frame is called with it."""
        module = None if self._module is None else self._module()
        return module if module is not None and any(value is module for value in bound.values()) else None

    def _uncaptured(self, function: FunctionType, bound: Mapping[str, Any]) -> CompiledFrame | None:
        """For a frame that is not captured."""
        code, fullgraph = function.__code__, self.settings.fullgraph
        if not is_generator_code(code):
            return uncaptured_frame(function, fullgraph=fullgraph)
        log_eager_run(generator_reason(code), fullgraph=fullgraph)
        made = self._generator_code(code)
        return CompiledFrame((), None if made is code else made)

    def _capture(
        self, function: FunctionType, bound: Mapping[str, Any], assumptions: CaptureAssumptions
    ) -> CapturedFrame | None:
        """None: the rest of a frame that was compiled in part runs on by itself, which is nothing to be warned of."""
        unknown_sizes = self.settings.options.unknown_sizes
        try:
            with counters.timed("capture"):
                return capture(
                    function,
                    dict(bound),
                    assumptions,
                    fullgraph=self.settings.fullgraph,
                    unknown_sizes=unknown_sizes,
                )
        except Unsupported as error:
            if resumption_of(function.__code__) is None:
                raise
            logs.log("graph_breaks", "%s", error)
            error.__traceback__ = None  # whose frames hold the error, and objects of the program
            return None

    def _note(self, captured: CapturedFrame, name: str, assumptions: CaptureAssumptions) -> None:
        """Count and show a capture, and keep what it teaches about other frames."""
        counters.count("frames")
        dumps.show("guards", "05_captured.txt", lambda: captured_text(captured), f"captured {name}")
        if not assumptions.says_compiling:
            self._fails_when_compiling.add(user_code(captured.code))
        exit_ = captured.exit
        if not isinstance(exit_, Break):
            return
        counters.count("graph_breaks")
        logs.log("graph_breaks", "%s", exit_.reason)
        if exit_.inner and captured.graph is None:
            innermost = exit_.inner[-1].code
            self._without_graph[innermost].add(captured.code)
            if len(self._without_graph[innermost]) >= _MOST_WITHOUT_GRAPH:
                self._called_apart.add(innermost)

    def _gains_by_emission(self, captured: CapturedFrame) -> bool:
        goes_on = isinstance(captured.exit, Break)
        return worth_emitting(captured) and not (goes_on and self._places[user_code(captured.code)] >= _MOST_PLACES)

    def _guards(self, captured: CapturedFrame, bound: Mapping[str, Any], *, free: bool = False) -> Sequence[Guard]:
        """`free`: nothing goes wrong where they hold and should not. Then a class that the program made while it ran
        is not held for its sake."""
        keep = self.settings.options.guard_filter_fn
        guards = captured.guards
        if free:
            guards = [guard for guard in guards if not is_in_local_class(guard.source)]
        return guards if keep is None else kept_guards(guards, keep, captured.function, bound)

    def _emit(
        self,
        captured: CapturedFrame,
        compiled: Callable[..., Any] | None,
        name: str,
        assumptions: CaptureAssumptions,
        *,
        of_module: bool,
    ) -> CodeType | None:
        """The code that takes the place of the frame's own; None: all of its own is to run."""
        exit_ = captured.exit
        try:
            with counters.timed("emit"):
                if captured.runs_original:
                    emitted = self._emit_original_frame(captured)
                else:
                    emitted = self._emit_around(captured, compiled, of_module=of_module)
        except CompileError as error:
            if not isinstance(exit_, Break) or not exit_.inner or not assumptions.nested:
                raise
            logs.log("graph_breaks", "the graph ends at the outermost call: %s", error)
            counters.count("dynamo.not_left_together")
            raise Retry(assumptions.not_nested()) from None
        if emitted is not None:
            dumps.show("bytecode", "60_bytecode.txt", partial(_text_of, emitted), f"new {name}")
        return emitted

    def _emit_original_frame(self, captured: CapturedFrame) -> CodeType | None:
        return emit_original_frame(
            captured,
            make_resume=partial(self.continuation, captured),
            dispatch=self.dispatch_at(captured),
            hook=self.hook_at(captured),
        )

    def _emit_around(
        self, captured: CapturedFrame, compiled: Callable[..., Any] | None, *, of_module: bool
    ) -> CodeType:
        """Around a call of the compiled graph."""
        on_failure = self._on_failure(captured) if compiled is not None else None
        emitted = emit(
            captured,
            compiled,
            make_resume=partial(self.continuation, captured),
            dispatch=self.dispatch_at(captured),
            hook=self._hook(),
            on_failure=on_failure,
            inner=self._inner_call(captured),
            generator_code=self._generator_code,
            tell=line_reporter(captured.executed_lines or ()),
            holds_parameters=of_module,
        )
        if on_failure is not None:
            on_failure.begins_anew.code = weakref.ref(emitted)  # type: ignore[attr-defined]
        return emitted

    # ---- generators ----

    def _generator_code(self, code: CodeType) -> CodeType:
        """What a generator of this code runs: its own, in which what it calls is compiled; see `emit_generator`."""
        if not calls_something(code):
            return code
        found = self._generator_codes.get(id(code))
        if found is None or found[0]() is not code:
            made = emit_generator(code, partial(native.begin_step, self._hook_callback), native.end_step)
            mark_as_ours(made)
            found = self._generator_codes[id(code)] = weakref.ref(code), made
        return found[1]

    # ---- breaks ----

    def dispatch_at(self, captured: CapturedFrame) -> Callable[[Any], Any]:
        """What gives, at run time, the callable that stands for the callee of the call at which this capture broke."""
        return self.dispatch

    def hook_at(self, captured: CapturedFrame) -> Hook:
        """What has the calls at the break of this capture compiled, at run time, from then on; and what ends it."""
        return self._hook()

    def _hook(self) -> Hook:
        return partial(native.hook_on, self._hook_callback), native.hook_off

    def continuation(self, captured: CapturedFrame, point: ResumePoint) -> Any:
        """What emitted code calls to go on at `point` of a frame whose capture broke; see `emit`."""
        return self._continuation(captured.function.__globals__, point)

    def _continuation(self, namespace: dict[str, Any], point: ResumePoint, *, joined: bool = False) -> Any:
        """`joined`: it is given what goes on with the function that the frame had called."""
        key = (id(namespace), id(point.code), point, joined)  # as equal code is not the same
        made = self._resumed.get(key)
        if made is None and joined:
            made = native.Continuation(never_called, None, None, None, len(point.closure), self._join)
            self._points[id(made)] = namespace, point
            made = self._resumed.setdefault(key, made)  # another thread's: emitted code refers to it weakly
        elif made is None:
            self._places[point.code] += 1
            code = resume_code(point, native.arrived, last_call=native.going_on)
            function = function_without_cells(code, namespace)
            cache = make_cache(code, self.compile_frame, self.settings.options)
            made = native.Continuation(function, cache, self._hook_callback, None, len(point.closure))
            made = self._resumed.setdefault(key, made)
        return made

    def joined_continuation(self, captured: CapturedFrame, point: ResumePoint) -> Any:
        """The same where the frame is in a call, and is given what goes on with the function that it had called."""
        return self._continuation(captured.function.__globals__, point, joined=True)

    def _join(self, outer: Any, inner: Any, *further: Any) -> Any:
        """The continuation of a frame together with those of the functions that it had called, one in another. It is
        asked for while the program runs, which may have replaced built-in functions."""
        inner = self._join(inner, *further) if further else inner
        made = self._joined.get((id(outer), id(inner)))
        if made is None:
            namespace, point = self._points[id(outer)]
            self._joined_places[point.code] += 1
            function = joined_function(namespace, point, inner)
            whole = self._joined_places[point.code] <= _MOST_JOINED_PLACES
            cache = None
            if whole:
                names = function.__code__.co_varnames
                receiver = next((name for name in reversed(names) if name.startswith("self of ")), "self")
                options = self.settings.options
                inside = (
                    None if inner._cache is None else InnerCache(inner._cache, inner_parameter_names(function, inner))
                )
                code = function.__code__
                leave = partial(self._leave_inside, weakref.ref(code))
                cache = make_cache(
                    code, self.compile_frame, options, receiver=receiver, inside=inside, leave_inside=leave
                )
            made = native.Continuation(function, cache, self._hook_callback, None, len(point.closure))
            made = self._joined.setdefault((id(outer), id(inner)), made)
        return made

    def _leave_inside(self, joined: weakref.ref[CodeType]) -> None:
        """Compile the rest of a frame, from now on, apart from the functions that it had called."""
        code = joined()
        if code is not None:
            self._called_apart.add(code)

    def _goes_on_apart(self, code: CodeType) -> bool:
        """Whether code goes on in several frames, which are left at the call of those inside. Up to that, it does
        nothing but hand values over, whatever these are."""
        return resumption_of(code) is not None and code in self._called_apart

    def _inner_call(self, captured: CapturedFrame) -> InnerCall | None:
        """What the frame calls where its graph ends inside of a function that it called."""
        exit_ = captured.exit
        if not isinstance(exit_, Break) or not exit_.inner:
            return None
        key = restorer_key(exit_.inner), exit_.reason.kind, exit_.reason.place
        callee = self._put_back.get(key)
        if callee is None:
            leaving = RestorerParts(
                exit_.reason,
                self._continuation,
                partial(self._continuation, joined=True),
                self.dispatch_at(captured),
                self._hook(),
            )
            callee = self._put_back[key] = frame_restorer(exit_.inner, leaving)
        return InnerCall(callee, partial(self.joined_continuation, captured))

    def _on_failure(self, captured: CapturedFrame) -> FailureHandling:
        """What emitted code calls where the graph raises."""
        failure = GraphFailure(captured)
        effects = captured.side_effects
        draws = (effects.repeatable or effects.checked) and (effects.drawn_on or effects.generators)
        states = partial(generator_states, effects.drawn_on) if draws else None
        returned = None if effects.noticed else failure.was_the_graph_s
        return FailureHandling(failure, self._program(captured, returned), states, effects.generators)

    def _program(self, captured: CapturedFrame, returned: Callable[[], None] | None) -> Any:
        """What emitted code calls to begin anew as the program's own code."""
        code = captured.code
        function = function_without_cells(code, captured.function.__globals__)
        # the rest of a frame may be a loop: what it calls is compiled, as where no version fits
        callback = None if resumption_of(code) is None else self._hook_callback
        return native.Continuation(function, None, callback, returned, len(closure_of(code)))


def _runs_by_itself(captured: CapturedFrame, emitted: CodeType | None, gains: bool) -> bool:
    """Whether the frame's own code runs, so that nothing goes wrong where guards hold and should not."""
    if not gains:
        return captured.runs_original and isinstance(captured.exit, Return)
    return captured.runs_original and (emitted is None or is_right_on_any_path(captured))


def _frame_name(function: FunctionType, module: Any) -> str:
    """For folders and headings: the function's name; for the call of a compiled module, the name of its class."""
    called = module is not None and function in (torch.nn.Module._wrapped_call_impl, type(module).forward)
    return type(module).__name__ if called else function.__code__.co_qualname


def _text_of(code: CodeType) -> str:
    return instructions_text(decode(code))
