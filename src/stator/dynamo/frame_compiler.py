"""Compiles a frame that is about to run: capture, verification, backend, code generation, and dumps of each stage."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from stator.base import counters, dumps, logs
from stator.base.errors import CompileError, Unsupported, UserPlace
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, Operation, Retry
from stator.dynamo.ir.capture_verifier import verify

from .backend import Settings, compile_graph, has_unknown_sizes, prepare, refused_operation, refuses_symbols
from .bytecode import decode, instructions_text
from .cache.compiled_frames import InnerCache, Install, frame_name, make_cache
from .cache.entry import CompiledFrame, is_entry, make_entry, make_hook_callback
from .cache.graph_fallback import GraphFailure, generator_states
from .capture import capture
from .codegen import (
    FailureHandling,
    InnerCall,
    emit,
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
    is_watched,
    uncaptured_frame,
    worth_emitting,
)
from .guards.guard import Guard
from .guards.guard_filter import kept_guards
from .guards.source import Source, in_variable, is_in_local_class, variable_of
from .host.compile_directives import disabled, frame_disabled_by_torch
from .host.hook import call_with_hook, skip_frame
from .host.native_status import native
from .interpreter.nested_break import user_code
from .ir.capture_printer import captured_text
from .ir.capture_result import Break, CapturedFrame, Return
from .ir.resume import ResumePoint, closure_of, resume_code, resumption_of

_MOST_PLACES = 128  # resume points of one code; each costs a compilation
_MOST_JOINED_PLACES = 1024  # resume points of one code with inner frames

_MOST_WITHOUT_GRAPH = 16  # callers in which a break of one function ended no graph

Hook = tuple[Callable[[], object], Callable[[], object]]


class FrameCompiler:
    """Compiles frames under one set of settings, and keeps the resume functions that their breaks need."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._resumed: dict[tuple[int, int, ResumePoint, bool], Any] = {}
        # codes with a frame that failed after is_compiling() had answered True
        self._fails_when_compiling: WeakSet[CodeType] = WeakSet()
        # codes whose graphs the backend cannot compile with sizes that depend on data
        self._knows_sizes: WeakSet[CodeType] = WeakSet()
        # codes whose graphs the backend cannot compile with symbols for sizes, and why
        self._keeps_sizes: WeakKeyDictionary[CodeType, str] = WeakKeyDictionary()
        # by user code: loops whose number of turns changes, and whether capture unrolls them
        self._loops: WeakKeyDictionary[CodeType, dict[int, bool]] = WeakKeyDictionary()
        self._places: Counter[CodeType] = Counter()  # resume points by code
        # operations that the backend cannot trace, each with the kind and the reason
        self._refused: dict[Operation, tuple[str, str]] = {}
        self._unsteady: set[UserPlace] = set()  # lines that relied on contents that changed often
        self._joined: dict[tuple[int, int], Any] = {}  # by the ids of the outer and the inner continuation
        self._joined_places: Counter[CodeType] = Counter()  # resume points inside a call, by code
        # by user code of frames that a break left together: numbers and sizes in their variables that change
        self._changing: WeakKeyDictionary[CodeType, dict[Source, int]] = WeakKeyDictionary()
        # by code that resumes a frame inside a call: that of the called function, and its names of the parameters
        self._resumed_inside: WeakKeyDictionary[CodeType, tuple[CodeType, dict[str, str]]] = WeakKeyDictionary()
        # by function: the callers that a break in the function left together with it, without a graph before
        self._without_graph: defaultdict[CodeType, WeakSet[CodeType]] = defaultdict(WeakSet)
        # functions with too many such callers, and resume code of several frames that was compiled too often
        self._called_apart: WeakSet[CodeType] = WeakSet()
        self._put_back: dict[Any, Any] = {}  # frame restorers
        self._points: dict[int, tuple[dict[str, Any], ResumePoint]] = {}  # by the id of a continuation
        self._module: weakref.ref[Any] | None = None  # the compiled module
        self._forward: CodeType | None = None  # its forward
        self._hook_callback = make_hook_callback(self.compile_frame, settings.options)

    # ---- callables ----

    def entry(self, function: FunctionType, module: Any = None) -> Callable[..., Any]:
        """The compiled twin of a function, or of the forward of `module`, for calls of `module` that reach the
        forward."""
        settings = self.settings
        if module is not None:
            self._module, self._forward = weakref.ref(module), function.__code__
        return make_entry(function, self.compile_frame, settings.options, fullgraph=settings.fullgraph)

    def dispatch(self, callee: Any) -> Any:
        """A callable that calls `callee` and compiles the frames that start during the call."""
        if type(callee) is not BuiltinFunctionType:
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
        """Compile a frame: capture, verify, compile the graph, emit code, install. A stage that learns more than the
        assumptions of the capture raises Retry, and the frame is captured again.

        Raises StatorError for what cannot be compiled (under fullgraph also for every graph break).
        """
        settings, code = self.settings, function.__code__
        module = self._module_among(bound)
        name = _frame_name(function, module)
        assumptions = self._with_lasting(assumptions, code)
        prepare(settings, code, bound)
        with dumps.compilation(name):
            dumps.show("bytecode", "00_bytecode.txt", partial(_text_of, code), f"original {name}")
            while True:
                try:
                    frame = uncaptured_frame(function, fullgraph=settings.fullgraph)
                    captured = self._capture(function, bound, assumptions) if frame is None else None
                    if captured is None:
                        return install(frame or CompiledFrame((), None), assumptions)
                    if settings.options.verify:
                        verify(captured)
                    is_new = not assumptions.leaves_small  # otherwise this break was counted and told
                    self._note(captured, frame_name(function, bound), name, assumptions, is_new=is_new)
                    emitted, gains = None, self._gains_by_emission(captured)
                    if gains:
                        if is_new and settings.on_captured is not None:
                            settings.on_captured(captured)
                        graph = self._compile_graph(captured, name, assumptions)
                        # only the entry's versions die with the module: continuations refer to this compiler in turn
                        holds = module is not None and code is self._forward
                        emitted = self._emit(captured, graph, name, assumptions, bound, holds_parameters=holds)
                    if emitted is not None and captured.runs_original and self._goes_on_apart(code):
                        return install(CompiledFrame((), emitted, last_resort=True), assumptions)
                    by_itself = _runs_by_itself(captured, emitted, gains)
                    frame = CompiledFrame(
                        self._guards(captured, bound, free=by_itself),
                        emitted,
                        followed=by_itself or (not gains and is_watched(captured)),
                    )
                    return install(frame, assumptions)
                except Retry as retry:
                    assumptions = retry.after(assumptions)

    def _compile_graph(
        self, captured: CapturedFrame, name: str, assumptions: CaptureAssumptions
    ) -> Callable[..., Any] | None:
        """The backend's callable. A graph with symbols that the backend cannot compile is captured again without; a
        graph with an operation that it cannot trace ends ahead of the operation; and instead of a graph that the
        backend left as it is, the frame's own code runs."""
        try:
            compiled = compile_graph(captured, self.settings, name, assumptions.refused)
            if captured.graph is not None and captured.may_run_original and "left_to_eager" in captured.graph.meta:
                raise Retry(assumptions.leaving_small())
            return compiled
        except (Unsupported, CompileError) as error:
            if not isinstance(error, Unsupported) or not refuses_symbols(error, captured):
                operation = refused_operation(error, captured)
                if operation is None or operation in assumptions.refused:
                    raise
                kind = error.kind if isinstance(error, Unsupported) else "operator-rule"
                self._refused[operation] = kind, error.reason
                raise Retry(assumptions.refusing(operation, kind, error.reason)) from None
            if has_unknown_sizes(captured):
                self._knows_sizes.add(captured.code)
                logs.log("graph_breaks", "%s ends ahead of sizes that depend on data: %s", name, error.reason)
                raise Retry(assumptions.with_known_sizes()) from None
            self._keeps_sizes[captured.code] = error.reason
            counters.count("dynamo.refused_symbols")
            if self.settings.dynamic:
                refused = f"the backend {self.settings.backend_name!r} refused symbols for its sizes: {error.reason}"
                text = f"stator: {name} is compiled for each size anew, in spite of dynamic=True: {refused}"
                logs.warn_once(f"dynamo.refused_symbols:{name}", text)
            logs.log("recompiles", "%s is compiled for these sizes alone: %s", name, error.reason)
            raise Retry(assumptions.with_fixed_sizes(error.reason)) from None

    def _with_lasting(self, assumptions: CaptureAssumptions, code: CodeType) -> CaptureAssumptions:
        """The assumptions, extended by facts from captures of other frames."""
        if resumption_of(code) is None:
            self._fails_when_compiling.discard(code)
        told = user_code(code) not in self._fails_when_compiling
        self._unsteady |= assumptions.unsteady
        return replace(
            assumptions,
            changes={**self._expected_changes(code), **assumptions.changes},
            unsteady=frozenset(self._unsteady),
            refused=dict(self._refused),
            called_apart=frozenset(self._called_apart),
            says_compiling=told,
            fixed_sizes=self._keeps_sizes.get(code, ""),
            known_sizes=code in self._knows_sizes,
            unrolled={(code, at): unrolled for code, loops in self._loops.items() for at, unrolled in loops.items()},
        )

    def _expected_changes(self, code: CodeType) -> dict[Source, int]:
        """Changes that the captures of frames have seen which this code resumes together."""
        resumption = resumption_of(code)
        if resumption is None:
            return {}
        changes = self._changing.get(user_code(code), {}).items()
        found = {source: count for source, count in changes if variable_of(source) in resumption.point.parameters}
        if code in self._resumed_inside:
            called, names = self._resumed_inside[code]
            there = {name: here for here, name in names.items()}
            for source, count in self._expected_changes(called).items():
                here = in_variable(source, there[variable_of(source)])  # type: ignore[index]
                if here is not None:
                    found[here] = count
        return found

    def _module_among(self, bound: Mapping[str, Any]) -> Any:
        """The compiled module, if it is among the frame's arguments."""
        module = None if self._module is None else self._module()
        return module if module is not None and any(value is module for value in bound.values()) else None

    def _capture(
        self, function: FunctionType, bound: Mapping[str, Any], assumptions: CaptureAssumptions
    ) -> CapturedFrame | None:
        """None if resume code cannot be captured: it runs eagerly, without a warning."""
        unknown_sizes = self.settings.options.unknown_sizes
        try:
            with counters.timed("capture"):
                return capture(
                    function,
                    dict(bound),
                    assumptions,
                    fullgraph=self.settings.fullgraph,
                    unknown_sizes=unknown_sizes,
                    kernels_warn=self.settings.backend_name != "inductor",
                    dynamic=self.settings.dynamic,
                )
        except Unsupported as error:
            if resumption_of(function.__code__) is None:
                raise
            logs.log("graph_breaks", "%s", error)
            error.__traceback__ = None  # its frames hold the error and objects of the program
            return None

    def _note(
        self, captured: CapturedFrame, frame: str, name: str, assumptions: CaptureAssumptions, *, is_new: bool
    ) -> None:
        """Count and dump a capture, and keep facts for captures of other frames."""
        dumps.show("guards", "05_captured.txt", lambda: captured_text(captured, frame), f"captured {name}")
        if not is_new:
            return
        counters.count("frames")
        if not assumptions.says_compiling:
            self._fails_when_compiling.add(user_code(captured.code))
        for (code, at), unrolled in assumptions.unrolled.items():
            self._loops.setdefault(code, {})[at] = unrolled
        exit_ = captured.exit
        if not isinstance(exit_, Break):
            return
        counters.count("graph_breaks")
        logs.log("graph_breaks", "%s", exit_.reason)
        if exit_.inner:
            self._changing.setdefault(user_code(captured.code), {}).update(exit_.changing)
            for one in exit_.inner:
                self._changing.setdefault(one.code, {}).update(one.changing)
        if exit_.inner and captured.graph is None:
            innermost = exit_.inner[-1].code
            self._without_graph[innermost].add(captured.code)
            if len(self._without_graph[innermost]) >= _MOST_WITHOUT_GRAPH:
                self._called_apart.add(innermost)

    def _gains_by_emission(self, captured: CapturedFrame) -> bool:
        goes_on = isinstance(captured.exit, Break)
        return worth_emitting(captured) and not (goes_on and self._places[user_code(captured.code)] >= _MOST_PLACES)

    def _guards(self, captured: CapturedFrame, bound: Mapping[str, Any], *, free: bool = False) -> Sequence[Guard]:
        """`free`: a wrong hit is harmless. Then guards on classes that the program defined in functions are dropped,
        so that the version does not keep such a class alive."""
        keep = self.settings.options.guard_filter_fn
        guards = captured.guards
        if captured.sizes is not None:
            captured.sizes.check_promises()
            for line in captured.sizes.describe() if logs.enabled("recompiles") else ():
                logs.log("recompiles", "compiled %s", line)
            guards = [*guards, *captured.sizes.guards()]
        if free:
            guards = [guard for guard in guards if not is_in_local_class(guard.source)]
        return guards if keep is None else kept_guards(guards, keep, captured.function, bound)

    def _emit(
        self,
        captured: CapturedFrame,
        compiled: Callable[..., Any] | None,
        name: str,
        assumptions: CaptureAssumptions,
        bound: Mapping[str, Any],
        *,
        holds_parameters: bool,
    ) -> CodeType | None:
        """The code that replaces the frame's own; None if all of the frame's own code is to run."""
        exit_ = captured.exit
        try:
            with counters.timed("emit"):
                if captured.runs_original:
                    emitted = self._emit_original_frame(captured)
                else:
                    emitted = self._emit_around(
                        captured, compiled, frame_name(captured.function, bound), holds_parameters=holds_parameters
                    )
        except CompileError as error:
            if not isinstance(exit_, Break) or not exit_.inner or not assumptions.nested:
                raise
            logs.log(
                "graph_breaks",
                "the break moves to the outermost call, because the inner frames cannot be restored: %s",
                error,
            )
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
        self, captured: CapturedFrame, compiled: Callable[..., Any] | None, name: str, *, holds_parameters: bool
    ) -> CodeType:
        """Emit the code around a call of the compiled graph."""
        on_failure = self._on_failure(captured, name) if compiled is not None else None
        emitted = emit(
            captured,
            compiled,
            make_resume=partial(self.continuation, captured),
            dispatch=self.dispatch_at(captured),
            hook=self._hook(),
            on_failure=on_failure,
            inner=self._inner_call(captured),
            holds_parameters=holds_parameters,
        )
        if on_failure is not None:
            on_failure.begins_anew.code = weakref.ref(emitted)  # type: ignore[attr-defined]
        return emitted

    # ---- breaks ----

    def dispatch_at(self, captured: CapturedFrame) -> Callable[[Any], Any]:
        """The function that maps, at run time, the callee of the call at this break to a callable that compiles
        frames; and a function that computes with NumPy alone to itself."""
        exit_ = captured.exit
        return _as_it_is if isinstance(exit_, Break) and exit_.reason.kind == "numpy-function" else self.dispatch

    def hook_at(self, captured: CapturedFrame) -> Hook:
        """The functions that turn the frame hook on and off around the operation at this break."""
        return self._hook()

    def _hook(self) -> Hook:
        return partial(native.hook_on, self._hook_callback), native.hook_off

    def continuation(self, captured: CapturedFrame, point: ResumePoint) -> Any:
        """The callable that resumes a frame of this capture at `point`; see `emit`."""
        made = self._continuation(captured.function.__globals__, point)
        if made._cache is not None and isinstance(captured.exit, Break):
            made._cache.miss.expect_changes(captured.exit.changing)
        return made

    def _continuation(self, namespace: dict[str, Any], point: ResumePoint, *, joined: bool = False) -> Any:
        """`joined`: the callable takes, as a last argument, the continuation of the called function."""
        key = (id(namespace), id(point.code), point, joined)  # by id: distinct code objects compare equal
        made = self._resumed.get(key)
        if made is None and joined:
            made = native.Continuation(never_called, None, None, None, len(point.closure), self._join)
            self._points[id(made)] = namespace, point
            # another thread may have been first; emitted code refers to it weakly
            made = self._resumed.setdefault(key, made)
        elif made is None:
            self._places[point.code] += 1
            code = resume_code(point, native.arrived, last_call=native.going_on)
            function = function_without_cells(code, namespace)
            cache = make_cache(code, self.compile_frame, self.settings.options)
            made = native.Continuation(function, cache, self._hook_callback, None, len(point.closure))
            made = self._resumed.setdefault(key, made)
        return made

    def joined_continuation(self, captured: CapturedFrame, point: ResumePoint) -> Any:
        """The callable that resumes a frame inside a call; it takes the called function's continuation as its last
        argument."""
        return self._continuation(captured.function.__globals__, point, joined=True)

    def _join(self, outer: Any, inner: Any, *further: Any) -> Any:
        """The continuation of a frame together with the continuations of the functions that it had called, nested in
        one another. Called while the program runs, which may have replaced built-in functions."""
        inner = self._join(inner, *further) if further else inner
        made = self._joined.get((id(outer), id(inner)))
        if made is None:
            namespace, point = self._points[id(outer)]
            self._joined_places[point.code] += 1
            function = joined_function(namespace, point, inner)
            whole = self._joined_places[point.code] <= _MOST_JOINED_PLACES
            cache = None
            if whole:
                inside_names = inner_parameter_names(function, inner)
                self._resumed_inside[function.__code__] = inner._function.__code__, inside_names
                names = function.__code__.co_varnames
                receiver = next((name for name in reversed(names) if name.startswith("self of ")), "self")
                options = self.settings.options
                inside = None if inner._cache is None else InnerCache(inner._cache, inside_names)
                code = function.__code__
                leave = partial(self._leave_inside, weakref.ref(code))
                cache = make_cache(
                    code, self.compile_frame, options, receiver=receiver, inside=inside, leave_inside=leave
                )
            made = native.Continuation(function, cache, self._hook_callback, None, len(point.closure))
            made = self._joined.setdefault((id(outer), id(inner)), made)
        return made

    def _leave_inside(self, joined: weakref.ref[CodeType]) -> None:
        """From now on, compile the resumed frame apart from the functions that it had called."""
        code = joined()
        if code is not None:
            self._called_apart.add(code)

    def _goes_on_apart(self, code: CodeType) -> bool:
        """Whether code resumes several frames and was compiled too often, so that it breaks at the call of the inner
        frames. Up to that call it only hands values over, whatever the values are."""
        return resumption_of(code) is not None and code in self._called_apart

    def _inner_call(self, captured: CapturedFrame) -> InnerCall | None:
        """The call of the inner frames, if the graph ends inside of a called function."""
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

    def _on_failure(self, captured: CapturedFrame, name: str) -> FailureHandling:
        """The handling of a graph that raises."""
        failure = GraphFailure(captured, name)
        effects = captured.side_effects
        draws = (effects.repeatable or effects.checked) and (effects.drawn_on or effects.generators)
        states = partial(generator_states, effects.drawn_on) if draws else None
        returned = None if effects.noticed else failure.was_the_graph_s
        return FailureHandling(failure, self._program(captured, returned), states, effects.generators)

    def _program(self, captured: CapturedFrame, returned: Callable[[], None] | None) -> Any:
        """The callable that starts the frame again with the program's own code."""
        code = captured.code
        function = function_without_cells(code, captured.function.__globals__)
        # resume code may contain a loop, whose callees are compiled, as after a cache miss without a version
        callback = None if resumption_of(code) is None else self._hook_callback
        return native.Continuation(function, None, callback, returned, len(closure_of(code)))


def _runs_by_itself(captured: CapturedFrame, emitted: CodeType | None, gains: bool) -> bool:
    """Whether the frame's own code runs, so that a wrong guard hit is harmless."""
    if not gains:
        return captured.runs_original and isinstance(captured.exit, Return)
    return captured.runs_original and (emitted is None or is_right_on_any_path(captured))


def _as_it_is(callee: Any) -> Any:
    """The callee, or the rest of a called function, whose frame and the frames that it calls stay uncompiled."""
    if type(callee) is not native.Inner:
        return callee
    function = callee._target._function
    return native.Inner(function, len(closure_of(function.__code__)))


def _frame_name(function: FunctionType, module: Any) -> str:
    """The name for dump folders and headings: the function's, or the class's for a call of the compiled module."""
    code = user_code(function.__code__)
    calls = torch.nn.Module._wrapped_call_impl, torch.nn.Module._call_impl, getattr(type(module), "forward", None)
    called = module is not None and any(code is getattr(call, "__code__", None) for call in calls)
    return type(module).__name__ if called else function.__code__.co_qualname


def _text_of(code: CodeType) -> str:
    return instructions_text(decode(code))
