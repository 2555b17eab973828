"""Variables at which only a function looks that is called, as what evaluates a text with its caller's variables."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stator
from stator.base import counters


def evaluate(text: str) -> Any:
    frame = sys._getframe(1)
    return eval(text, frame.f_globals, frame.f_locals)


def variables_of_the_caller() -> list[str]:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return sorted(frame.f_back.f_locals)


def by_way_of_another(text: str) -> Any:
    return _values(text.split())


def _values(names: list[str]) -> Any:
    variables = sys._getframe(2).f_locals
    return [variables[name] for name in names]


def at_the_break(x: torch.Tensor) -> Any:
    unread = x + 1
    y = unread * 2
    return evaluate("unread * 3"), y


def behind_another_break(x: torch.Tensor) -> Any:
    unread = x + 1  # noqa: F841 (the text reads it)
    gc.isenabled()
    y = x * 2
    return evaluate("unread * 3"), y


def by_two_calls(x: torch.Tensor) -> Any:
    unread = x + 1
    y = unread * 2
    return by_way_of_another("unread x")[0], y


def names_of_them(x: torch.Tensor) -> Any:
    unread = SimpleNamespace(a=1)  # noqa: F841 (seen by its name)
    y = x * 2
    gc.isenabled()
    return y, variables_of_the_caller()


@pytest.mark.parametrize("program", [at_the_break, behind_another_break, by_two_calls, names_of_them])
def test_they_are_as_in_eager(program: Callable[..., Any]) -> None:
    compiled = stator.compile(program, backend="eager")
    counters.clear()
    for _ in range(2):
        expected, found = program(torch.ones(2)), compiled(torch.ones(2))
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert counters.counts["graphs"] > 0


def given_at_once() -> Any:
    return sys._getframe(1).f_locals


def given_by_name() -> Any:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    variables = frame.f_back.f_locals
    return variables


@pytest.mark.parametrize("give", [given_at_once, given_by_name])
@pytest.mark.parametrize("inlined", [False, True])
def test_variables_that_are_given_back_are_those_of_the_frame(give: Callable[[], Any], inlined: bool) -> None:
    """From 3.13 on they are seen as they are when they are looked at; before, as they were when they were given."""

    def program(x: torch.Tensor) -> Any:
        number = 1
        variables = given_at_once() if give is given_at_once else given_by_name()
        y = x + number
        gc.isenabled()
        number = 2
        return variables["number"], "y" in variables, y * number

    def around(x: torch.Tensor) -> Any:
        return program(x)

    entered = around if inlined else program
    assert stator.compile(entered, backend="eager")(torch.ones(2))[:2] == entered(torch.ones(2))[:2]
