"""What a person sees who debugs a compiled function: the same as without compiling it, word for word."""

from __future__ import annotations

import inspect
import io
import pdb
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base.errors import Unsupported


def helper(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y + 1


def stops(x: torch.Tensor) -> torch.Tensor:
    dead = x * 2
    b = dead + 1
    breakpoint()
    c = b.cos()
    d = helper(c)
    return d * 3


def stops_deep_inside(x: torch.Tensor) -> torch.Tensor:
    before = x + 1
    y = stops(before)
    return helper(y)


def stops_in_a_turn(x: torch.Tensor) -> torch.Tensor:
    for turn in range(3):
        x = helper(x) * turn
        if turn == 1:
            breakpoint()
    return x


def stops_behind_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    z = y * 3
    breakpoint()
    return helper(z)


def never_stops(x: torch.Tensor) -> torch.Tensor:
    a = x * 2
    b = helper(a)
    return b * a


WALK = "p x\nn\np c\nn\ns\ns\nw\nr\nn\nn\nc\n"


@pytest.fixture(autouse=True)
def nobody_traces() -> Iterator[None]:
    before = sys.gettrace()
    yield
    sys.settrace(before)


def session(commands: str, monkeypatch: pytest.MonkeyPatch) -> tuple[pdb.Pdb, io.StringIO]:
    shown = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=shown, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    monkeypatch.setattr(sys, "breakpointhook", debugger.set_trace)
    return debugger, shown


def transcript(function: Callable[..., Any], commands: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any]:
    """Without the frames that call the function: they are this test's."""
    _, shown = session(commands, monkeypatch)
    try:
        result = function(torch.ones(2))
    finally:
        sys.settrace(None)
    lines = shown.getvalue().splitlines()
    return "\n".join(line for line in lines if "site-packages" not in line), result


@pytest.mark.parametrize("program", [stops, stops_deep_inside, stops_in_a_turn, stops_behind_a_break])
@pytest.mark.parametrize("commands", [WALK, "p x\nc\nc\nc\n", "up\np dir()\ndown\nu\nn\nc\nc\n"])
def test_a_breakpoint_in_the_code(program: Any, commands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = stator.compile(program, backend="eager")
    seen = [transcript(function, commands, monkeypatch) for function in (program, compiled, compiled)]
    for text, result in seen[1:]:
        assert text == seen[0][0]
        assert torch.equal(result, seen[0][1])


def test_the_variables_of_before_can_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that nothing reads any more."""
    seen, _ = transcript(stator.compile(stops, backend="inductor"), "n\np dead\nc\n", monkeypatch)
    assert "tensor([2., 2.])" in seen


@pytest.mark.parametrize("program", [never_stops, helper])
def test_a_breakpoint_set_from_outside(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a function that runs compiled already, and in one that is part of its graph."""
    compiled = stator.compile(never_stops, backend="eager")
    compiled(torch.ones(2))
    shown = []
    for function in (never_stops, compiled):
        debugger, output = session("p x\nn\nn\nc\nc\n", monkeypatch)
        debugger.set_break(__file__, inspect.getsourcelines(program)[1] + 2)
        try:
            debugger.runcall(function, torch.ones(2))
        finally:
            sys.settrace(None)
            debugger.clear_all_breaks()
        shown.append(output.getvalue())
    assert "p x" not in shown[0] and "tensor" in shown[0]
    assert shown[1] == shown[0]


def test_under_fullgraph_it_is_an_error_with_its_place() -> None:
    with pytest.raises(Unsupported, match=r"debugger[\s\S]*test_debuggers\.py"):
        stator.compile(stops, backend="eager", fullgraph=True)(torch.ones(2))


def lines_of(function: Callable[..., Any], call: Callable[[], Any]) -> tuple[list[int], Any]:
    """The lines of `function` that a trace function is told of, and what the call gives."""
    code, seen = function.__code__, []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is code and event == "line":
            seen.append(frame.f_lineno - code.co_firstlineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = call()
    finally:
        sys.settrace(before)
    return seen, result


def test_all_lines_are_reported_where_they_are_asked_for() -> None:
    x = torch.arange(3.0)
    compiled = stator.compile(never_stops, backend="eager")
    expected = lines_of(never_stops, lambda: never_stops(x))
    assert compiled(x).shape == (3,)
    inside, result = lines_of(never_stops, lambda: compiled(x))
    assert inside == [], "compiled code runs under a trace function"
    torch.testing.assert_close(result, expected[1], rtol=0, atol=0)
    assert stator.cover_lines() is False
    try:
        assert lines_of(never_stops, lambda: compiled(x))[0] == expected[0]
    finally:
        assert stator.cover_lines(False) is True
    assert lines_of(never_stops, lambda: compiled(x))[0] == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_all_lines_are_reported_to_the_monitoring_tool_of_coverage() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    x, seen = torch.arange(3.0), []
    compiled = stator.compile(never_stops, backend="eager")
    compiled(x)
    monitoring.use_tool_id(monitoring.COVERAGE_ID, "lines")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, lambda code, line: seen.append(line))
    stator.cover_lines()
    try:
        monitoring.set_local_events(monitoring.COVERAGE_ID, never_stops.__code__, monitoring.events.LINE)
        compiled(x)
    finally:
        stator.cover_lines(False)
        monitoring.set_local_events(monitoring.COVERAGE_ID, never_stops.__code__, 0)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)
    assert [line - never_stops.__code__.co_firstlineno for line in seen] == [1, 2, 3]


def two_lines(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y * 2


def traces_what_it_calls(x: torch.Tensor) -> Any:
    x = torch.tanh(x)
    return lines_of(two_lines, lambda: two_lines(x))


def calls_what_traces(x: torch.Tensor) -> Any:
    y = two_lines(x)
    lines, result = traces_what_it_calls(y)
    return lines, result + two_lines(y)


@pytest.mark.parametrize("function", [traces_what_it_calls, calls_what_traces])
def test_a_trace_function_that_the_program_sets_is_told_of_all_that_runs(function: Callable[..., Any]) -> None:
    x = torch.arange(3.0)
    compiled = stator.compile(function, backend="eager")
    for _ in range(2):
        lines, result = compiled(x)
        expected_lines, expected = function(x)
        assert lines == expected_lines == [1, 2]
        assert torch.equal(result, expected)
