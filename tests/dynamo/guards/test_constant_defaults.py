"""Tuples and sets of constants that are defaults of functions: which object they are, and what they are equal to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

DIMENSIONS, NAMES = (1, 2), frozenset({"a", "b"})


def _dimensions(given: Any = DIMENSIONS) -> Any:
    return given


def _names(given: Any = NAMES) -> Any:
    return given


def _by_keyword(*, given: Any = DIMENSIONS) -> Any:
    return given


class Shape:
    def __init__(self, dimensions: Any = DIMENSIONS) -> None:
        self.dimensions = dimensions


@dataclasses.dataclass(frozen=True)
class Settings:
    scale: int = 1
    dimensions: tuple[int, ...] = DIMENSIONS


def _compared(one: Any, other: Any) -> list[bool]:
    return [one is other, other is one, one == other, other == one, one != other, (one, 1) == (other, 1)]


MADE: dict[str, tuple[Callable[[], Any], Any]] = {
    "a tuple": (_dimensions, DIMENSIONS),
    "a set": (_names, NAMES),
    "by keyword": (_by_keyword, DIMENSIONS),
    "of a method": (lambda: Shape().dimensions, DIMENSIONS),
    "a field": (lambda: Settings().dimensions, DIMENSIONS),
}


@pytest.mark.parametrize("name", MADE)
def test_a_default_beside_what_is_given(name: str) -> None:
    default, value = MADE[name]

    def program(x: torch.Tensor, given: Any) -> Any:
        return x + 1, _compared(default(), given)

    compiled = stator.compile(program, backend="eager")
    x = torch.randn(2)
    for given in (value, type(value)(list(value)), type(value)(list(value)[:1]), value):
        assert compiled(x, given)[1] == program(x, given)[1]


@pytest.mark.parametrize("name", ["DIMENSIONS", "NAMES"])
def test_a_default_beside_the_global_that_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default = _dimensions if name == "DIMENSIONS" else _names

    def program(x: torch.Tensor) -> Any:
        return x + 1, _compared(default(), DIMENSIONS if name == "DIMENSIONS" else NAMES)

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(2)
    assert compiled(x)[1] == program(x)[1]
    monkeypatch.setitem(globals(), name, type(default())(list(default())))
    assert compiled(x)[1] == program(x)[1]


def test_a_default_that_leaves_the_graph_is_the_object() -> None:
    compiled = stator.compile(lambda x: (x + 1, _dimensions(), _names()), backend="eager", fullgraph=True)
    _, dimensions, names = compiled(torch.randn(2))
    assert dimensions is DIMENSIONS and names is NAMES


def test_dataclasses_with_a_default_are_equal() -> None:
    def program(x: torch.Tensor, given: Settings) -> Any:
        return x * given.scale, dataclasses.replace(given, scale=given.scale * 2) == Settings(2), given == Settings()

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(2)
    for given in (Settings(), Settings(2), Settings(1, (3, 4)), Settings(1, (1, 2))):
        assert compiled(x, given)[1:] == program(x, given)[1:]


def test_another_default_is_seen() -> None:
    def local(given: Any = (1, 2)) -> Any:
        return given

    def program(x: torch.Tensor, given: Any) -> Any:
        return x + 1, local() == given, local()

    compiled = stator.compile(program, backend="eager")
    x = torch.randn(2)
    assert compiled(x, (1, 2))[1:] == program(x, (1, 2))[1:]
    local.__defaults__ = ((3, 4),)
    assert compiled(x, (1, 2))[1:] == program(x, (1, 2))[1:]
