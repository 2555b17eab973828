"""What holds for every test: each capture is verified, and no error of compiled code, and no defect of the compiler, is
hidden by running the program's own code after it."""

import gc
import itertools
import os
import traceback
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

# Before torch is loaded. Tests run beside each other: threads that spin until those without a core end their part took
# three quarters of the processors' time in files that run kernels.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from tests import kept_outcomes

from stator.aot.partition import call_costs
from stator.base import counters
from stator.base.errors import CompileError, StatorError
from stator.dynamo import frame_compiler
from stator.dynamo.cache import compiled_frames
from stator.dynamo.cache.graph_fallback import GraphFailure
from stator.dynamo.ir.capture_result import CapturedFrame
from stator.dynamo.ir.capture_verifier import verify
from stator.inductor import program_cache

# each seed of a device that is not started keeps a printed stack, which takes ten times as long as the seeding
for _device in (torch.cuda, torch.xpu, torch.mtia):
    _device.traceback = SimpleNamespace(**{**vars(traceback), "format_stack": list})  # type: ignore[attr-defined]

call_costs.LITTLE_DATA = -1  # most tests of gradients use little data, which is left to eager
call_costs.MUCH_DATA = -1  # on much data, some loops gain alone
program_cache.is_on = False  # tests replace parts of the compiler, which no key of a program can tell
_FAILURES = "dynamo.failures_of_graphs_alone"
_OUR_BACKENDS = {f"backend {name!r}" for name in ("eager", "aot_eager", "inductor")}
# kept here, not in the counters: a test may clear those
_failed: list[str] = []
_internal: list[str] = []
_MODULES_BETWEEN_WHOLE_COLLECTIONS = 50
_modules = itertools.count(1)
_dynamic = False
_was_the_graph_s = GraphFailure.was_the_graph_s
_is_internal = compiled_frames.is_internal
_capture = frame_compiler.capture


def _noted(failure: GraphFailure) -> None:
    before = counters.counts[_FAILURES]
    _was_the_graph_s(failure)
    if counters.counts[_FAILURES] > before:  # a check of what was assumed is no failure
        _failed.append(f"{failure.name}: {failure.latest}")


def _noted_if_internal(error: Exception) -> bool:
    """Stands in for `is_internal`; the caller counts frames of the stack, so it cannot be replaced itself."""
    internal = _is_internal(error)
    if internal or _is_of_our_backend(error):
        _internal.append(f"{type(error).__name__}: {error}")
    return internal


def _is_of_our_backend(error: Exception) -> bool:
    """Did a backend of ours end with an error that none of its stages raises on purpose, or print invalid C++?"""
    if isinstance(error, CompileError) and "a defect of stator" in (error.hint or ""):
        return True
    of_ours = isinstance(error, CompileError) and error.stage in _OUR_BACKENDS
    return of_ours and not isinstance(error.__cause__, StatorError)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dynamic", action="store_true", help="capture with symbols for all sizes, as dynamic=True does")
    kept_outcomes.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    global _dynamic
    _dynamic = bool(config.getoption("--dynamic"))
    kept_outcomes.register(config)
    gc.disable()  # until all tests are collected: what is made by then stays


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _leave_combinations_to_slow_tests(items)
    for item in items if _dynamic else ():
        if item.get_closest_marker("fixed_sizes") is not None:
            item.add_marker(pytest.mark.skip(reason="judges what is made of constant sizes"))


def _leave_combinations_to_slow_tests(items: list[pytest.Item]) -> None:
    """Mark as slow what has no new pair of values, of a test marked `each_pair`, in an order drawn by their names."""
    seen: set[object] = set()
    for item in sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode())):
        if item.get_closest_marker("each_pair") is not None and item.get_closest_marker("slow") is None:
            values = [(name, id(value)) for name, value in item.callspec.params.items()]  # type: ignore[attr-defined]
            pairs = {(item.location[0], item.location[1], pair) for pair in itertools.combinations(values, 2)}
            if pairs <= seen:
                item.add_marker(pytest.mark.slow)
            seen |= pairs


def _verified(*args: Any, **kwargs: Any) -> CapturedFrame:
    if _dynamic and kwargs.get("dynamic") is None:
        kwargs["dynamic"] = True
    captured = _capture(*args, **kwargs)
    verify(captured)
    return captured


frame_compiler.capture = _verified
GraphFailure.was_the_graph_s = _noted  # type: ignore[method-assign]
compiled_frames.is_internal = _noted_if_internal


@pytest.fixture(autouse=True, scope="module")
def earlier_objects_are_not_collected_each_time() -> None:
    """Freeze the million objects of torch, transformers and earlier tests: each collection would visit them."""
    if next(_modules) % _MODULES_BETWEEN_WHOLE_COLLECTIONS == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def graphs_do_not_fail_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    _failed.clear()
    yield
    if _failed and request.node.get_closest_marker("graphs_may_fail_alone") is None:
        pytest.fail(f"a compiled graph raised an error that eager execution did not raise: {'; '.join(_failed)}")


@pytest.fixture(autouse=True)
def the_compiler_does_not_fail(request: pytest.FixtureRequest) -> Iterator[None]:
    _internal.clear()
    yield
    # files that other interpreters run without pytest mark their tests with an attribute
    meant = request.node.get_closest_marker("internal_errors") or getattr(request.function, "internal_errors", False)
    if _internal and not meant:
        pytest.fail(f"an internal error made a frame run eagerly: {'; '.join(_internal)}")
    if meant and not _internal:
        pytest.fail("marked internal_errors, and there was none")


@pytest.fixture(autouse=True)
def regions_of_autocast_are_left() -> Iterator[None]:
    """One that stays open keeps casts of weights, which differ under `no_grad`, for later tests."""
    yield
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    leave, enter = torch.autocast_decrement_nesting, torch.autocast_increment_nesting
    for _ in range(abs(depth)):
        (leave if depth > 0 else enter)()
    if depth:
        torch.clear_autocast_cache()
        pytest.fail(f"the number of open regions of autocast is {depth}")
