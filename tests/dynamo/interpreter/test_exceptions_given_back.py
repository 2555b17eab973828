"""Exceptions that captured code makes and hands out have the causes, contexts and arguments that it gave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


def with_cause(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.__cause__ = KeyError(2)
    return x + 1, error


def with_context(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.__context__ = KeyError(2)
    error.__context__.__cause__ = None
    return x + 1, error


def in_a_circle(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.__context__ = KeyError(2)
    error.__context__.__cause__ = error
    return x + 1, error


def with_other_arguments(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.args = (5, 6)
    return x + 1, error, str(error), repr(error)


def caused_by_a_class(x: torch.Tensor) -> Any:
    try:
        raise ValueError(1) from KeyError
    except ValueError as error:
        return x + 1, type(error.__cause__).__name__


def shown(value: Any, depth: int = 0) -> Any:
    if isinstance(value, BaseException) and depth < 4:
        links = shown(value.__cause__, depth + 1), shown(value.__context__, depth + 1), value.__suppress_context__
        return type(value).__name__, value.args, links
    return [shown(one) for one in value] if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(
    "function",
    [with_cause, with_context, in_a_circle, with_other_arguments, caused_by_a_class],
    ids=lambda one: one.__name__,
)
def test_exceptions_are_as_the_program_made_them(function: Callable[..., Any]) -> None:
    stator.reset()
    compiled = stator.compile(function, backend="eager", fullgraph=True)
    for call in range(2):
        assert shown(compiled(torch.ones(2) + call)) == shown(function(torch.ones(2) + call))
