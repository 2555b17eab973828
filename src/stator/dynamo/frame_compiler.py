"""A frame that is about to run -> compiled frame: capture, backend, emission, and what is shown of them on the way."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakSet

import torch
from torch import fx

from stator.base import counters, dumps, logs
from stator.base.config import Options
from stator.base.errors import CompileError, MissingToolchain, StatorError, Unsupported, UserPlace
from stator.base.signals import is_of_a_signal
from stator.graph.printer import print_graph

from .bytecode import decode, instructions_text, reachable
from .cache.compiled_frames import make_cache
from .cache.entry import CompiledFrame, is_entry, make_entry, make_hook_callback
from .cache.graph_fallback import Failure, generator_states
from .cache.recompile_limit import Inside
from .capture import capture
from .codegen import (
    InnerCall,
    LeftInside,
    OnFailure,
    calls_something,
    emit,
    emit_own_code,
    emit_steps,
    is_right_on_any_path,
)
from .codegen.nested_resume import (
    Leaving,
    function_without_cells,
    joined_function,
    key_of,
    left_behind_call,
    names_inside,
    never_called,
    operand_entering,
    put_back,
)
from .guards.global_state import read_global_state
from .guards.guard import Guard, GuardKind
from .guards.guard_filter import kept_guards
from .guards.source import FunctionSource, is_about_made_class
from .host.break_kinds import way_out
from .host.code_marks import mark_as_ours
from .host.compile_directives import disabled, is_of_torch_compile, left_alone_by_torch
from .host.compile_status import Told
from .host.hook import call_with_hook, leave_frame_alone
from .host.introspection import observer_in
from .host.native_status import native
from .host.numpy_sampling import draws_apart, types_of
from .interpreter.nested_break import has_shadowed_cell, receiver_of, user_code
from .ir.call_completion import TOLD, CallCompletion
from .ir.capture_printer import captured_text
from .ir.capture_result import Break, BreakReason, CapturedFrame, InnerFrame
from .ir.covered_lines import telling
from .ir.generator_places import Place, Waits, places_of
from .ir.prepared_code import must_stay
from .ir.reconstruct_ir import NewGenerator, SetGenerator
from .ir.resume import ResumePoint, closure_of, resume_code, resumption_of
from .ir.torch_state import forward_ad_guard, in_forward_ad, in_function_transform

_OF_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SUSPENDABLE = _OF_ASYNC | inspect.CO_GENERATOR | inspect.CO_ITERABLE_COROUTINE

_MOST_PLACES = 128  # at which the frames of one code are resumed; each costs a compilation
_MOST_JOINED_PLACES = 1024  # at which they are, together with those of functions that they call

_MOST_WITHOUT_GRAPH = (
    16  # places at which frames of one function are left together with those around them, without a graph
)

Hook = tuple[Callable[[], object], Callable[[], object]]
Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Settings:
    """What one `stator.compile` call asked for.

    on_captured: told of every frame that was captured, with its graph, before the backend sees it.
    """

    backend: Backend
    backend_name: str = "eager"
    fullgraph: bool = False
    options: Options = field(default_factory=Options)
    on_captured: Callable[[CapturedFrame], None] | None = None


class FrameCompiler:
    """Compiles frames under one set of settings, and keeps the resume functions that their breaks need."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._resumed: dict[tuple[int, int, ResumePoint, bool], Any] = {}
        self._told = Told()
        self._places: Counter[CodeType] = Counter()  # at which frames of a code are resumed
        self._joined: dict[tuple[int, int], Any] = {}  # by the ids of two continuations
        self._joined_places: Counter[CodeType] = Counter()  # the same, in a call
        # where frames of a function were left together with those around them, without a graph before
        self._without_graph: defaultdict[CodeType, WeakSet[CodeType]] = defaultdict(WeakSet)
        self._called_apart: set[CodeType] = (
            set()
        )  # functions of which that was at so many places that they no longer are
        # by the ids of generators' code, and where a graph ended in them
        self._made_steps: dict[tuple[int, int | None, int | None], tuple[weakref.ref[CodeType], CodeType]] = {}
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
        alone = left_alone_by_torch(callee)
        if alone is not None:
            leave_frame_alone(alone.__code__)
            callee = alone
        return partial(call_with_hook, self._hook_callback, callee)

    # ---- one frame ----

    def compile_frame(self, function: FunctionType, bound: Mapping[str, Any]) -> CompiledFrame:
        """Compile the call of `function` with these values of its parameters.

        Raises StatorError for what cannot be compiled (under fullgraph also for every graph break).
        """
        try:
            return self._compile(function, bound)
        except _InnerCompileError as error:
            logs.log("graph_breaks", "the graph ends at the outermost call: %s", error)
        counters.count("dynamo.not_left_together")
        return self._compile(function, bound, nested=False)

    def _compile(self, function: FunctionType, bound: Mapping[str, Any], *, nested: bool = True) -> CompiledFrame:
        code = function.__code__
        if code.co_flags & _SUSPENDABLE:
            return self._steps(code)
        if is_of_torch_compile(function):
            return self._of_torch_compile(code)
        observer = observer_in(code, function.__globals__)
        if observer is not None:
            return self._observing(code, observer)
        if not self.settings.fullgraph and draws_apart(code, function.__globals__, types_of(bound.values())):
            return CompiledFrame((), None, followed=True)
        now = read_global_state()
        if now.observed or in_function_transform() or in_forward_ad():
            # vmap, grad and the like: their tensors are no plain ones; who counts or traces operators is to see those
            # of the program. What they call runs as it is, in that state only
            state = Guard(FunctionSource(), GuardKind.GLOBAL_STATE, now)
            return CompiledFrame((state, forward_ad_guard()), None)
        module = None if self._module is None else self._module()
        of_module = module is not None and any(value is module for value in bound.values())
        name = _frame_name(function, module if of_module else None)
        with dumps.compilation(name):
            _show("bytecode", "00_bytecode.txt", lambda: instructions_text(decode(code)), f"original {name}")
            try:
                with counters.timed("capture"):
                    captured = capture(
                        function,
                        dict(bound),
                        fullgraph=self.settings.fullgraph,
                        nested=nested,
                        apart=self._called_apart,
                        told=self._told,
                        unknown_sizes=self.settings.options.unknown_sizes,
                    )
            except Unsupported as error:
                if resumption_of(code) is None:
                    raise
                # the rest of a frame that was compiled in part runs on by itself, which is nothing to be warned of
                logs.log("graph_breaks", "%s", error)
                return CompiledFrame((), None)
            counters.count("frames")
            _show("guards", "05_captured.txt", lambda: captured_text(captured), f"captured {name}")
            self._look_at_breaks(captured)
            if not self._worth_compiling(captured):
                free = captured.as_it_is and not isinstance(captured.exit, Break)
                return CompiledFrame(self._guards(captured, bound, free=free), None, free or _is_watched(captured))
            if captured.as_it_is:
                own = self._own_code(captured, name)
                free = own is None or is_right_on_any_path(captured)
                return CompiledFrame(self._guards(captured, bound, free=free), own, followed=free)
            compiled = self._compile_graph(captured, name)
            with counters.timed("emit"):
                emitted = self._emit(captured, compiled, of_module)
            _show("bytecode", "60_bytecode.txt", lambda: instructions_text(decode(emitted)), f"new {name}")
            return CompiledFrame(self._guards(captured, bound), emitted, silent=captured.ran is None)

    def _steps(self, code: CodeType) -> CompiledFrame:
        """A generator or coroutine function: it runs by itself, and what it calls is compiled."""
        reason = BreakReason(
            "async" if code.co_flags & _OF_ASYNC else "generator",
            f"{code.co_qualname} runs in steps",
            UserPlace(code.co_filename, code.co_firstlineno, code.co_qualname),
            "what it calls is compiled",
        )
        if self.settings.fullgraph:
            raise Unsupported(reason.kind, reason.reason, place=reason.place, hint=reason.hint)
        logs.log("graph_breaks", "%s", reason)
        if not calls_something(code):
            return CompiledFrame((), None)
        return CompiledFrame((), self._steps_code(code))

    def _steps_code(self, code: CodeType, stopped_at: int | None = None, inside: LeftInside | None = None) -> CodeType:
        """See `emit_steps`."""
        key = id(code), stopped_at, None if inside is None else id(inside.callee)
        found = self._made_steps.get(key)
        if found is None or found[0]() is not code:
            begin = partial(native.begin_step, self._hook_callback)
            made = emit_steps(code, begin, native.end_step, stopped_at, inside)
            mark_as_ours(made)
            found = self._made_steps[key] = weakref.ref(code), made
        return found[1]

    def _generator_code(self, captured: CapturedFrame, wanted: NewGenerator | SetGenerator) -> tuple[CodeType, int]:
        """The code of a generator that outlives the graph, and the unit of it where the generator goes on."""
        place, code = wanted.place, wanted.kept if isinstance(wanted, SetGenerator) else None
        if place is not None and place.waits is Waits.CALLING:
            code = self._code_inside(captured, wanted, place)
            if isinstance(wanted, NewGenerator):
                return code, 0
        stopped_at = place.index if place is not None and place.waits is Waits.STEPPING else None
        if code is None:
            made = stopped_at is not None or calls_something(wanted.code)
            code = self._steps_code(wanted.code, stopped_at) if made else wanted.code
        units = places_of(code).units
        return code, units[place or next(one for one in units if one.waits is Waits.CREATED)]

    def _code_inside(self, captured: CapturedFrame, wanted: NewGenerator | SetGenerator, place: Place) -> CodeType:
        """Of a generator that goes on in the middle of a function that it had called."""
        if isinstance(wanted, NewGenerator):
            return self._steps_code(wanted.code)  # in whose frame there is room for the other
        try:
            callee = self._putting_back(captured, wanted.called, CallCompletion.RESULT, None)
            return self._steps_code(wanted.code, place.index, LeftInside(callee, len(wanted.stack) - 1))
        except CompileError as error:
            raise _InnerCompileError("dynamo", str(error)) from error

    def _observing(self, code: CodeType, observer: str) -> CompiledFrame:
        """A function that looks at the interpreter: it runs as it is, and all that it calls."""
        place = UserPlace(code.co_filename, code.co_firstlineno, code.co_qualname)
        what = f"{code.co_qualname} asks {observer}(), which would see what compiling makes"
        return self._as_it_is(BreakReason("observer", what, place, way_out("observer", None)))

    def _of_torch_compile(self, code: CodeType) -> CompiledFrame:
        """What torch.compile gave sets its own hook and takes it away: left in the middle, that would stay."""
        place = UserPlace(code.co_filename, code.co_firstlineno, code.co_qualname)
        what = f"{code.co_qualname} belongs to torch's own compiler"
        return self._as_it_is(BreakReason("disabled", what, place, way_out("disabled", None)))

    def _as_it_is(self, reason: BreakReason) -> CompiledFrame:
        if self.settings.fullgraph:
            raise Unsupported(reason.kind, reason.reason, place=reason.place, hint=reason.hint)
        counters.count("graph_breaks")
        logs.log("graph_breaks", "%s", reason)
        return CompiledFrame((), None, followed=True)

    def _guards(self, captured: CapturedFrame, bound: Mapping[str, Any], *, free: bool = False) -> Sequence[Guard]:
        """`free`: nothing goes wrong where they hold and should not. Then a class that the program made while it ran
        is not held for its sake."""
        keep = self.settings.options.guard_filter_fn
        guards = captured.guards
        if free:
            guards = [guard for guard in guards if not is_about_made_class(guard.source)]
        return guards if keep is None else kept_guards(guards, keep, captured.function, bound)

    # ---- breaks ----

    def _look_at_breaks(self, captured: CapturedFrame) -> None:
        exit_ = captured.exit
        if not isinstance(exit_, Break):
            return
        reason = exit_.reason
        if self.settings.fullgraph:
            raise Unsupported(reason.kind, reason.reason, place=reason.place, hint=reason.hint)
        counters.count("graph_breaks")
        logs.log("graph_breaks", "%s", reason)
        if exit_.inner and captured.graph is None:
            innermost = exit_.inner[-1].code
            self._without_graph[innermost].add(captured.code)
            if len(self._without_graph[innermost]) >= _MOST_WITHOUT_GRAPH:
                self._called_apart.add(innermost)

    def _worth_compiling(self, captured: CapturedFrame) -> bool:
        """Whether the frame gains by running emitted code instead of its own."""
        if not isinstance(captured.exit, Break):
            return captured.graph is not None or not captured.as_it_is
        if captured.exit.reason.kind == "long-loop" or _is_watched(captured):
            return False  # it runs on for long, and would be followed again and again; or it is looked at
        code = user_code(captured.code)
        if not set(code.co_varnames).issuperset(captured.exit.locals):
            return False  # a value on the stack at the break before cannot even be looked at
        if _asks_in_vain_for_super(captured, captured.exit) or _is_within_an_instruction(captured, captured.exit):
            return False
        if has_shadowed_cell(captured.code, captured.exit.cells):
            return False
        return self._places[code] < _MOST_PLACES and not must_stay(code, captured.function.__globals__)

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
            callee = None if point.inner is None else next  # of a generator in which a graph ended
            raising = None if point.waiting else native.going_on  # it is the generator that goes on
            code = resume_code(point, native.arrived, callee, last_call=raising)
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
                inside = None if inner._cache is None else Inside(inner._cache, names_inside(function, inner))
                code = function.__code__
                apart = partial(self._apart, weakref.ref(function))
                cache = make_cache(code, self.compile_frame, options, receiver=receiver, inside=inside, apart=apart)
            made = native.Continuation(function, cache, self._hook_callback, None, len(point.closure))
            made = self._joined.setdefault((id(outer), id(inner)), made)
        return made

    def _apart(self, joined: weakref.ref[FunctionType]) -> tuple[FunctionType, CompiledFrame] | None:
        """What runs instead of a frame together with those that it had called, which was compiled too often: these by
        themselves, then the rest of the frame by itself."""
        function = joined()
        if function is None:
            return None
        captured = left_behind_call(function)
        resume = partial(self.continuation, captured)
        try:
            code = emit_own_code(captured, make_resume=resume, dispatch=self.dispatch, hook=self._hook())
        except CompileError as error:
            logs.log("graph_breaks", "the rest of the frames around runs as it is, too: %s", error)
            counters.count("dynamo.not_left_apart")
            return None
        return None if code is None else (function, CompiledFrame((), code, last_resort=True))

    def _inner_call(self, captured: CapturedFrame) -> InnerCall | None:
        """What the frame calls where its graph ends inside of a function that it called."""
        exit_ = captured.exit
        if not isinstance(exit_, Break) or not exit_.inner:
            return None
        entering = operand_entering(captured.code, exit_.index) if exit_.finish in TOLD else None
        callee = self._putting_back(captured, exit_.inner, exit_.finish, entering)
        return InnerCall(callee, partial(self.joined_continuation, captured))

    def _putting_back(
        self, captured: CapturedFrame, frames: Sequence[InnerFrame], finish: CallCompletion | None, entering: str | None
    ) -> Any:
        """What puts these frames back. finish: for what the first was entered; entering: by reading this attribute."""
        exit_ = captured.exit
        assert isinstance(exit_, Break)
        key = key_of(frames), finish, entering, exit_.reason.kind, exit_.reason.place
        callee = self._put_back.get(key)
        if callee is None:
            leaving = Leaving(
                exit_.reason,
                self._continuation,
                partial(self._continuation, joined=True),
                self.dispatch_at(captured),
                self._hook(),
            )
            callee = self._put_back[key] = put_back(frames, leaving, finish, entering)
        return callee

    def _on_failure(self, captured: CapturedFrame) -> OnFailure:
        """What emitted code calls where the graph raises."""
        failure = Failure(captured)
        effects = captured.side_effects
        draws = (effects.repeatable or effects.checked) and (effects.drawn_on or effects.generators)
        states = partial(generator_states, effects.drawn_on) if draws else None
        returned = None if effects.noticed else failure.was_the_graph_s
        return OnFailure(failure, self._program(captured, returned), states, effects.generators)

    def _program(self, captured: CapturedFrame, returned: Callable[[], None] | None) -> Any:
        """What emitted code calls to begin anew as the program's own code."""
        code = captured.code
        function = function_without_cells(code, captured.function.__globals__)
        # the rest of a frame may be a loop: what it calls is compiled, as where no version fits
        callback = None if resumption_of(code) is None else self._hook_callback
        return native.Continuation(function, None, callback, returned, len(closure_of(code)))

    # ---- stages ----

    def _compile_graph(self, captured: CapturedFrame, name: str) -> Callable[..., Any] | None:
        graph = captured.graph
        if self.settings.on_captured is not None:
            self.settings.on_captured(captured)
        if graph is None:
            return None
        counters.count("graphs")
        _show("graph", "10_graph.py", lambda: print_graph(graph, title=name), f"of {name}")
        place = _first_place(captured)
        try:
            with counters.timed("backend"):
                compiled = self.settings.backend(graph, [entry.example for entry in captured.inputs])
        except MissingToolchain as error:
            if self.settings.fullgraph:
                raise
            logs.warn_once("toolchain", f"stator: captured graphs run eagerly, operation by operation: {error}")
            return graph.forward
        except StatorError:
            raise
        except Exception as error:
            if is_of_a_signal(error):
                raise
            raise CompileError(
                f"backend {self.settings.backend_name!r}", f"{type(error).__name__}: {error}", place=place
            ) from error
        if not callable(compiled):
            raise CompileError(
                f"backend {self.settings.backend_name!r}",
                f"it returned {type(compiled).__name__}, which is not callable",
                place=place,
                hint="a backend is (gm, example_inputs) -> callable; return gm.forward to run the graph as it is",
            )
        return compiled

    def _own_code(self, captured: CapturedFrame, name: str) -> CodeType | None:
        """Of a frame with nothing to compile before it breaks; None: all of its own is to run."""
        if self.settings.on_captured is not None:
            self.settings.on_captured(captured)
        with counters.timed("emit"):
            own = emit_own_code(
                captured,
                make_resume=lambda point: self.continuation(captured, point),
                dispatch=self.dispatch_at(captured),
                hook=self.hook_at(captured),
            )
        if own is not None:
            _show("bytecode", "60_bytecode.txt", lambda: instructions_text(decode(own)), f"new {name}")
        return own

    def _emit(self, captured: CapturedFrame, compiled: Callable[..., Any] | None, of_module: bool) -> CodeType:
        on_failure = self._on_failure(captured) if compiled is not None else None
        try:
            emitted = emit(
                captured,
                compiled,
                make_resume=lambda point: self.continuation(captured, point),
                dispatch=self.dispatch_at(captured),
                hook=self._hook(),
                on_failure=on_failure,
                inner=self._inner_call(captured),
                generator_code=partial(self._generator_code, captured),
                tell=telling(captured.ran or ()),
                holds_parameters=of_module,
            )
        except CompileError as error:
            if isinstance(captured.exit, Break) and captured.exit.inner:
                raise _InnerCompileError("dynamo", str(error)) from error
            raise
        if on_failure is not None:
            on_failure.begins_anew.code = weakref.ref(emitted)  # type: ignore[attr-defined]
        return emitted


class _InnerCompileError(CompileError):
    """Frames cannot be left together. Private to this module."""


def _frame_name(function: FunctionType, module: Any) -> str:
    """For folders and headings: the function's name; for the call of a compiled module, the name of its class."""
    called = module is not None and function in (torch.nn.Module._wrapped_call_impl, type(module).forward)
    return type(module).__name__ if called else function.__code__.co_qualname


def _asks_in_vain_for_super(captured: CapturedFrame, exit_: Break) -> bool:
    """Whether a super() behind the break looks for its receiver in the frame's first slot, where the code that goes on
    has none: the receiver lives in a cell, was deleted, or there never was one."""
    code = user_code(captured.code)
    if "super" not in code.co_names:
        return False
    receiver = receiver_of(code)
    if receiver in exit_.locals and receiver not in exit_.cells:
        return False
    instructions = decode(captured.code)
    return any(
        instruction.argval == "super" and not any(one.opname == "LOAD_SUPER_ATTR" for one in instructions)
        for instruction in reachable(instructions, instructions[exit_.index])
    )


def _is_watched(captured: CapturedFrame) -> bool:
    """Whether a person or a function is about to look at what runs there, and in what it calls."""
    return isinstance(captured.exit, Break) and captured.exit.reason.kind == "debugger"


def _is_within_an_instruction(captured: CapturedFrame, exit_: Break) -> bool:
    """Whether only a part of an instruction of the user's code is done there, in code that goes on behind a break."""
    resumption = resumption_of(captured.code)
    if resumption is None or exit_.inner or resumption.indices[exit_.index] is not None:
        return False
    return resumption.indices[exit_.index + 1] is None  # nothing is left to do behind the last part


def _first_place(captured: CapturedFrame) -> UserPlace:
    """The user's line that the graph starts at, as far as it is known."""
    if captured.graph is not None:
        for node in captured.graph.graph.nodes:
            place = node.meta.get("place")
            if place is not None:
                return place
    code = captured.code
    return UserPlace(code.co_filename, code.co_firstlineno, code.co_qualname)


def _show(artifact: str, filename: str, text: Callable[[], str], title: str) -> None:
    """Log and dump one stage; the text is made only when someone looks."""
    dumps.write(filename, text)
    if logs.enabled(artifact):
        logs.log(artifact, "%s\n%s", title, text())
