"""Programs that end their graphs and note it: what a call gives or raises, the order of what happens and the lines of
tracebacks, to be compared with eager's."""

from __future__ import annotations

import gc
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Program = Callable[..., Any]
LOG: list[Any] = []  # what happened in the running call


def brk(*what: Any) -> None:
    """Ends the graph, and notes what is told."""
    LOG.append(what)
    stator.graph_break()


def collector() -> tuple[list[Any], Callable[[Program], Program]]:
    """A list of test parameters, and the decorator that adds programs to it."""
    programs: list[Any] = []

    def program(function: Program) -> Program:
        programs.append(pytest.param(function, id=function.__name__))
        return function

    return programs, program


def outcome(function: Program, seen: Callable[[Any], Any]) -> Any:
    """What a call shows: its result as `seen` (tensors as numbers) or its error, the notes, and the argument."""
    LOG.clear()
    x = torch.arange(1.0, 4.0)
    result: Any
    try:
        result = seen(function(x))
    except Exception as error:
        places = [(one.name, one.lineno) for one in traceback.extract_tb(error.__traceback__)[1:]]
        result = type(error), str(error), places
        del error
    gc.collect()
    return result, list(LOG), x.tolist()


def check_as_eager(function: Program, seen: Callable[[Any], Any]) -> None:
    """That three calls of the compiled program show what eager shows, and warn of nothing."""
    expected = outcome(function, seen)
    compiled = stator.compile(function, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert outcome(compiled, seen) == expected


def graphs_made(function: Program, seen: Callable[[Any], Any]) -> int:
    """How many graphs two calls make."""
    made: list[Any] = []

    def backend(gm: Any, example_inputs: Any) -> Callable[..., Any]:
        made.append(gm)
        return gm.forward

    compiled = stator.compile(function, backend=backend)
    for _ in range(2):
        outcome(compiled, seen)
    return len(made)
