"""KeyboardInterrupt at any point of a compilation passes, leaves every mode as it was, and the next call compiles; the
same for interrupts in guards. And defects of ours at every stage: the program runs eagerly, told once what failed."""

from __future__ import annotations

import gc
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest
import torch

import stator
from stator.base import logs
from stator.dynamo.cache.entry import cache_of
from stator.dynamo.host.native_status import native
from stator.shapes.environment import asking


class Interrupt(KeyboardInterrupt):
    """What a test raises in the middle."""


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        total = x.sum()
    y = torch.nn.functional.linear(x, w).relu()
    try:
        y = y / 2
        stator.graph_break()
    finally:
        y = y + total
    return y * 2


def thread_state() -> dict[str, Any]:
    """All that a compilation changes for a while."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "collector": gc.isenabled(),
        "compiling": stator.is_compiling(),
        "hook": (native.hook_users(), native.hook_callback()),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "included keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "mkldnn": torch._C._get_mkldnn_enabled(),
        "saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(False),
        "originals": native.runs_originals(),
        "answers about sizes": {way for way, on in vars(asking).items() if on},
    }


Event = Callable[[FrameType, str], bool]


@contextmanager
def interrupt_at(number: int, counts: Event, seen: list[int]) -> Iterator[None]:
    """Raise Interrupt at the `number`-th event of this thread for which `counts` holds."""

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if counts(frame, event):
            seen[0] += 1
            if seen[0] == number:
                raise Interrupt

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def ignored_by_python() -> Iterator[list[BaseException | None]]:
    """The exceptions that Python ignores, as it does those in finalizers: of generators and of weak references."""
    ignored: list[BaseException | None] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: ignored.append(unraisable.exc_value)
    try:
        yield ignored
    finally:
        sys.unraisablehook = hook


def anywhere(frame: FrameType, event: str) -> bool:
    return True


def entering_and_leaving(frame: FrameType, event: str) -> bool:
    """The calls between which modes are half on."""
    return event in ("call", "return") and frame.f_code.co_name in ("__enter__", "__exit__")


@pytest.mark.parametrize("counts", [anywhere, entering_and_leaving])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_an_interrupt_leaves_nothing_behind(backend: str, counts: Event) -> None:
    generator = random.Random(0)
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    expected = program(x, w)
    stator.compile(program, backend=backend, dynamic=True)(x, w)  # what is made once in a process is made
    before, seen = thread_state(), [0]
    with interrupt_at(-1, counts, seen):
        stator.compile(program, backend=backend, dynamic=True)(x, w)
    for _ in range(8):
        at = generator.randrange(1, seen[0] * 9 // 10)
        compiled = stator.compile(program, backend=backend, dynamic=True)
        with ignored_by_python() as ignored:
            try:
                with interrupt_at(at, counts, [0]):
                    compiled(x, w)
            except Interrupt:
                pass
            else:
                assert [type(error) for error in ignored] == [Interrupt], f"the interrupt at event {at} did not pass"
        assert thread_state() == before, f"after an interrupt at event {at} of {seen[0]}"
        torch.testing.assert_close(compiled(x, w), expected)
        assert cache_of(compiled).versions and not cache_of(compiled).eager


def test_a_signal_interrupts_a_compilation() -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        if len(calls) < 1:
            calls.append(1)
            signal.raise_signal(signal.SIGINT)
            sum(range(10))  # the handler has run by now
        return gm.forward

    calls: list[int] = []
    compiled = stator.compile(lambda x: x + 1, backend=backend)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores the signal
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(torch.ones(2))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert compiled(torch.ones(2)).tolist() == [2, 2] and len(cache_of(compiled).versions) == 1


class Late(Exception):
    """What a handler of signals raises: an error like any other."""


@contextmanager
def raising_handler(raised: list[int]) -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raised.append(number)
        raise Late

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_a_handler_of_signals_raises_while_compiling_is_raised(backend: str) -> None:
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    expected = program(x, w)
    stator.compile(program, backend=backend)(x, w)  # what is made once in a process is made
    start = time.perf_counter()
    stator.compile(program, backend=backend)(x, w)
    seconds, before = time.perf_counter() - start, thread_state()
    for part in (0.1, 0.3, 0.5, 0.6):
        raised: list[int] = []
        compiled, passed = stator.compile(program, backend=backend), False
        with raising_handler(raised), ignored_by_python() as ignored:
            signal.setitimer(signal.ITIMER_REAL, seconds * part)
            try:
                compiled(x, w)
            except Late:
                passed = True
        assert passed == (bool(raised) and not ignored), f"raised after {part} of {seconds} s"
        assert thread_state() == before
        torch.testing.assert_close(compiled(x, w), expected)


@pytest.mark.parametrize("called", ["constant", "operator", "backend"])
def test_it_is_no_error_of_what_it_interrupts(called: str) -> None:
    def may_send(here: str) -> None:
        if called == here:
            signal.raise_signal(signal.SIGALRM)

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        may_send("backend")
        return gm.forward

    @stator.allow_in_graph
    def operator(x: torch.Tensor) -> torch.Tensor:
        may_send("operator")
        return x.sin()

    @stator.assume_constant_result
    def constant() -> int:
        may_send("constant")
        return 2

    raised: list[int] = []
    with raising_handler(raised), pytest.raises(Late):
        stator.compile(lambda x: operator(x) * constant(), backend=backend)(torch.ones(2))
    assert len(raised) == 1


def test_an_interrupt_in_a_guard_passes() -> None:
    class Thing:
        def __init__(self) -> None:
            self.interrupted = False

        @property
        def scale(self) -> float:
            if self.interrupted:
                raise Interrupt
            return 2.0

    thing = Thing()
    compiled = stator.compile(lambda x: x * thing.scale, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    thing.interrupted = True
    with pytest.raises(Interrupt):
        compiled(torch.ones(2))


def test_an_interrupt_that_guards_meet_is_no_failed_guard() -> None:
    from stator.dynamo.guards.guard import Guard, GuardKind
    from stator.dynamo.guards.guard_tree import build_guard_tree
    from stator.dynamo.guards.source import LocalSource

    def function(a: int) -> None:
        return None

    def interrupted(value: object) -> bool:
        raise Interrupt

    tree = build_guard_tree([Guard(LocalSource("a"), GuardKind.PREDICATE, interrupted)], function)
    with pytest.raises(Interrupt):
        tree.check((1,), function)
    with pytest.raises(Interrupt):
        tree.explain((1,), function)


# ---- defects of ours ----

STAGES = [
    ("stator.dynamo.frame_compiler.capture", "eager", "an internal error"),
    ("stator.dynamo.frame_compiler.emit", "eager", "an internal error"),
    ("stator.dynamo.cache.compiled_frames.build_guard_tree", "eager", "an internal error"),
    ("stator.dynamo.graph.graph_builder.GraphBuilder.record", "eager", "an internal error"),
    ("stator.dynamo.interpreter.frame.Frame.run", "eager", "an internal error"),
    ("stator.dynamo.interpreter.reconstruction.FrameReconstructor.replay", "eager", "an internal error"),
    ("stator.aot.compile_inference", "aot_eager", "backend 'aot_eager'"),
    ("stator.pipeline.lower", "inductor", "backend 'inductor'"),
    ("stator.pipeline.schedule", "inductor", "backend 'inductor'"),
    ("stator.pipeline.plan", "inductor", "backend 'inductor'"),
    ("stator.pipeline._build", "inductor", "backend 'inductor'"),
]


@pytest.mark.internal_errors
@pytest.mark.parametrize(("stage", "backend", "named"), STAGES, ids=[stage for stage, _, _ in STAGES])
def test_a_defect_at_any_stage_runs_the_program_eagerly_and_is_told_once(
    stage: str, backend: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a defect")

    # as code of ours: an error out of code of the program, which runs when objects are looked at, is no defect
    broken.__code__ = broken.__code__.replace(co_filename=stator.__file__)

    def frame_of_the_user(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1).exp()

    monkeypatch.setattr(stage, broken)
    logs.forget_warnings()
    before = thread_state()
    compiled, x = stator.compile(frame_of_the_user, backend=backend), torch.randn(5)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(compiled(x), frame_of_the_user(x))
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 1, texts
    assert "frame_of_the_user" in texts[0] and named in texts[0] and "ZeroDivisionError: a defect" in texts[0]
    assert caught[0].filename == __file__
    assert thread_state() == before
    monkeypatch.undo()
    stator.reset()
    torch.testing.assert_close(compiled(x), frame_of_the_user(x))


@pytest.mark.internal_errors
def test_a_defect_behind_a_break_keeps_what_was_done_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def frame_of_the_user(x: torch.Tensor) -> torch.Tensor:
        log.append("before")
        y = x + 1
        stator.graph_break()
        log.append("after")
        return y * 2

    from stator.dynamo import frame_compiler

    emit, calls = frame_compiler.emit, []

    def breaks_the_second_time(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError("a defect")
        return emit(*args, **kwargs)

    monkeypatch.setattr(frame_compiler, "emit", breaks_the_second_time)
    logs.forget_warnings()
    with pytest.warns(RuntimeWarning, match="a defect"):
        assert stator.compile(frame_of_the_user, backend="eager")(torch.ones(2)).tolist() == [4, 4]
    assert log == ["before", "after"]


class Timed:
    """Text with it in calls its method by an instruction that joins no graphs."""

    def __format__(self, moment: str) -> str:
        return "later" if float(moment) < time.time() else ""


def reads_the_clock(x: torch.Tensor, timed: Timed) -> bool:
    x += 1
    return bool(f"{timed:0}")


def reads_the_clock_and_handles(x: torch.Tensor, timed: Timed) -> bool:
    try:
        x += 1
        return bool(f"{timed:0}")
    except Interrupt:
        return False


def reads_the_clock_and_cleans_up(x: torch.Tensor, timed: Timed) -> bool:
    try:
        x += 1
        return bool(f"{timed:0}")
    finally:
        x.zero_()


@pytest.mark.parametrize("function", [reads_the_clock, reads_the_clock_and_handles, reads_the_clock_and_cleans_up])
def test_an_interrupt_right_behind_turning_the_hook_on(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    turned = []
    turn_on = native.hook_on

    def turn_on_and_interrupt(callback: Any) -> None:
        turn_on(callback)
        turned.append(callback)
        if len(turned) == 2:
            raise Interrupt

    monkeypatch.setattr(native, "hook_on", turn_on_and_interrupt)
    compiled = stator.compile(function, backend="eager")
    before = thread_state()
    assert compiled(torch.ones(2), Timed())
    with suppress(Interrupt):
        compiled(torch.ones(2), Timed())
    assert len(turned) == 2
    assert thread_state() == before
