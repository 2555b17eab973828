"""Who is told of lines is told of the same lines of the program, compiled or not: those of graphs, too."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.dynamo.interpreter.random_python import arguments, namespace, programs

import stator
from stator.base import counters
from stator.dynamo.cache.entry import cache_of

EXAMPLES = int(os.environ.get("STATOR_TEST_EXAMPLES", "25"))
Told = set[tuple[str, int]]


@contextlib.contextmanager
def by_settrace(filename: str, told: Told) -> Iterator[None]:
    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != filename:
            return None
        if event == "line":
            told.add((frame.f_code.co_name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def by_monitoring(filename: str, told: Told) -> Iterator[None]:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    tool, events = monitoring.COVERAGE_ID, monitoring.events

    def start(code: Any, offset: int) -> None:
        if code.co_filename == filename:
            monitoring.set_local_events(tool, code, events.LINE)

    monitoring.use_tool_id(tool, "lines")
    monitoring.register_callback(tool, events.PY_START, start)
    monitoring.register_callback(tool, events.PY_RESUME, start)
    monitoring.register_callback(tool, events.LINE, lambda code, line: told.add((code.co_name, line)))
    monitoring.set_events(tool, events.PY_START | events.PY_RESUME)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        for event in (events.PY_START, events.PY_RESUME, events.LINE):
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)


newer = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
either = pytest.mark.parametrize("counted", [by_settrace, pytest.param(by_monitoring, marks=newer)])


def without_first_lines(told: Told, source: str) -> Told:
    """But for the lines of `def` and its like, which ran when the function was made."""
    lines = source.splitlines()
    return {(name, line) for name, line in told if not lines[line - 1].lstrip().startswith(("def ", "@", "async def "))}


def lines_told(source: str, how: Any, compiled: bool, before: bool) -> list[Told]:
    scope = namespace([])
    exec(compile(source, "<program>", "exec"), scope)
    function = stator.compile(scope["program"], backend="eager") if compiled else scope["program"]
    found: list[Told] = []
    for turn in range(3):
        told: Told = set()
        with (
            contextlib.nullcontext() if before and turn == 0 else how("<program>", told),
            contextlib.suppress(Exception),
        ):
            function(*arguments())
        found.append(without_first_lines(told, source))
    return found


@pytest.mark.parametrize("before", [False, True], ids=["", "compiled before"])
@either
def test_lines_of_random_programs(counted: Any, before: bool) -> None:
    @pytest.mark.filterwarnings("error:stator")
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs())
    def check(source: str) -> None:
        expected, found = lines_told(source, counted, False, before), lines_told(source, counted, True, before)
        assert found == expected, source

    check()


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, wide: bool = True) -> torch.Tensor:
        if wide:
            y = self.linear(x)
        else:
            y = x
        return y.relu()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        if x.sum() > 1e6:
            x = x + 1
        stator.graph_break()
        return sum(pieces(x))


def pieces(x: torch.Tensor) -> Iterator[torch.Tensor]:
    for number in range(3):
        if number == 1:
            continue
        yield x * number


def told_of(function: Callable[..., Any], how: Any) -> Told:
    told: Told = set()
    with how(__file__, told):
        function(torch.ones(2, 4))
    return {(name, line) for name, line in told if not name.startswith("by_")}


@either
def test_a_module_runs_compiled_and_its_lines_are_told(counted: Any) -> None:
    net = Net()
    expected = told_of(net, counted)
    assert len({name for name, _ in expected}) == 2
    compiled = stator.compile(net, backend="eager")
    graphs = counters.counts["graphs"]
    starts = {code.co_firstlineno for code in (Net.forward.__code__, Layer.forward.__code__, pieces.__code__)}
    for _ in range(2):
        assert {(name, line) for name, line in told_of(compiled, counted) if line not in starts} == expected
    assert counters.counts["graphs"] > graphs


@either
def test_what_was_compiled_before_is_compiled_once_more(counted: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y * 2

    compiled = stator.compile(function, backend="eager")
    compiled(torch.ones(2, 4))
    expected = told_of(function, counted)
    with stator.assert_no_recompile():
        found = told_of(compiled, counted)
    start = function.__code__.co_firstlineno
    assert {(name, line) for name, line in found if line != start} == expected
    assert len(cache_of(compiled).versions) == 1
    compiled(torch.ones(2, 4))
    assert len(cache_of(compiled).versions) == 1


def test_lines_behind_an_error_in_a_graph_are_not_told() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        z = torch.linalg.cholesky(y - 2)
        return z * 2

    compiled, told = stator.compile(function, backend="eager"), set()
    with by_settrace(__file__, told), pytest.raises(RuntimeError):
        compiled(torch.eye(3))
    start = function.__code__.co_firstlineno
    assert {line - start for name, line in told if name == "function"} - {0} == {1, 2}


@pytest.mark.parametrize("core", ["ctrace", pytest.param("sysmon", marks=newer)])
def test_coverage_counts_the_same_lines(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coverage = pytest.importorskip("coverage")
    if sys.gettrace() is not None:
        pytest.skip("something counts lines already")
    monkeypatch.setenv("COVERAGE_CORE", core)
    net, found = Net(), []
    for function in (net, stator.compile(net, backend="eager")):
        counting = coverage.Coverage(data_file=None, include=[__file__], config_file=False)
        counting.start()
        try:
            function(torch.ones(2, 4))
        finally:
            counting.stop()
        data = counting.get_data()
        found.append({line for name in data.measured_files() for line in data.lines(name) or ()})
    starts = {code.co_firstlineno for code in (Net.forward.__code__, Layer.forward.__code__, pieces.__code__)}
    assert found[0] and found[1] - starts == found[0] - starts
