"""Errors that an operator raises for some data reach the handlers of the program that stand around it, as in eager."""

import contextlib
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

GOOD, BAD = torch.eye(2), -torch.eye(2)


def caught(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        y = torch.zeros_like(x) - 1
    return y + 1


def caught_in_the_caller(x: torch.Tensor) -> torch.Tensor:
    def factor(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x + 0)

    try:
        return factor(x) + 1
    except RuntimeError:
        return x - 5


def a_method(x: torch.Tensor) -> torch.Tensor:
    try:
        return (x + 1 - torch.eye(2)).inverse() + 1
    except RuntimeError:
        return x - 3


def tried_again(x: torch.Tensor) -> torch.Tensor:
    for attempt in range(4):
        try:
            return torch.linalg.cholesky(x + attempt * torch.eye(2))
        except RuntimeError:
            continue
    return x


def swallowed(x: torch.Tensor) -> torch.Tensor:
    y = x
    with contextlib.suppress(RuntimeError):
        y = torch.linalg.cholesky(x) * 2
    return y + 1


def finally_seen(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    try:
        return torch.linalg.cholesky(x) + 1
    finally:
        log.append("finally")


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", [caught, caught_in_the_caller, a_method, tried_again, swallowed])
def test_handlers_catch_what_an_operator_raises(program: Any, backend: str) -> None:
    compiled = stator.compile(program, backend=backend)
    for x in (GOOD, BAD, GOOD, BAD, torch.zeros(2, 2)):
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-6, atol=1e-6)


def test_finally_is_run_as_the_error_passes() -> None:
    compiled, log = stator.compile(finally_seen, backend="eager"), []
    compiled(GOOD, log)
    with pytest.raises(RuntimeError):
        compiled(BAD, log)
    assert log == ["finally", "finally"]


def test_without_a_handler_it_is_part_of_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), contextlib.nullcontext():
            return torch.linalg.cholesky(x) + sum([torch.linalg.inv(part) for part in (x, x)])

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(GOOD), program(GOOD))


def in_two_graphs(x: torch.Tensor, restored: Any, log: list[str]) -> torch.Tensor:
    """The graph behind the break writes to what was there before it, and holds an operator that may fail."""
    total = torch.zeros_like(x)
    try:
        stator.graph_break()
        total.add_(x)
        with torch.no_grad():
            total = total + torch.nn.functional.one_hot(x[0].long(), 2)
    finally:
        if restored is not None:
            log.append("put back")
    return total


@pytest.mark.parametrize(("restored", "graphs"), [(None, 2), ("a", 3)])
def test_a_finally_that_does_nothing_this_time_ends_no_graph(restored: Any, graphs: int) -> None:
    compiled, log, wanted = stator.compile(in_two_graphs, backend="eager"), [], []
    counters.clear()
    torch.testing.assert_close(compiled(GOOD, restored, log), in_two_graphs(GOOD, restored, wanted))
    assert (log, counters.counts["graphs"]) == (wanted, graphs)
    for given in (restored, None, "b"):
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            compiled(GOOD * 3, given, log)
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            in_two_graphs(GOOD * 3, given, wanted)
        assert log == wanted


@pytest.mark.parametrize("flag", [True, False])
def test_a_finally_with_a_switch(flag: bool) -> None:
    def program(x: torch.Tensor, flag: bool, log: list[str]) -> torch.Tensor:
        total = torch.zeros_like(x)
        stator.graph_break()
        try:
            total.add_(x)
            return total + torch.nn.functional.one_hot(x[0].long(), 2)
        finally:
            if flag:
                log.append("put back")

    compiled, log, wanted = stator.compile(program, backend="eager"), [], []
    for given in (flag, not flag, flag):
        torch.testing.assert_close(compiled(GOOD, given, log), program(GOOD, given, wanted))
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            compiled(GOOD * 3, given, log)
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            program(GOOD * 3, given, wanted)
        assert log == wanted
