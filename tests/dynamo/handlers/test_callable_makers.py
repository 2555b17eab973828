"""`operator.attrgetter`, `itemgetter` and `methodcaller` made in captured code are the real ones to who sees them."""

from __future__ import annotations

import operator
import os
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.ones(2)
Program = Callable[..., Any]


class User:
    @property
    def fails(self) -> None:
        open(os.devnull).close()  # breaks the graph
        raise ValueError

    def fail(self) -> None:
        raise KeyError

    def __getitem__(self, key: str) -> str:
        open(os.devnull).close()
        raise KeyError(key)


def by_attribute(x: torch.Tensor, user: User) -> Any:
    x = x + 1
    return x, operator.attrgetter("__class__", "fails")(user)


def by_item(x: torch.Tensor, user: User) -> Any:
    x = x + 1
    return x, operator.itemgetter("a", "b")(user)


def by_method(x: torch.Tensor, user: User) -> Any:
    x = x + 1
    return x, operator.methodcaller("fail")(user)


def lines(program: Program) -> list[tuple[str, int | None]]:
    with pytest.raises((ValueError, KeyError)) as raised:
        program(X, User())
    return [(entry.name, entry.lineno) for entry in traceback.extract_tb(raised.tb) if entry.name != "__call__"][1:]


@pytest.mark.parametrize("program", [by_attribute, by_item, by_method])
def test_tracebacks_show_the_frames_of_the_program(program: Program) -> None:
    assert lines(stator.compile(program, backend="eager")) == lines(program)


def test_what_leaves_the_graph_is_what_operator_makes() -> None:
    def program(x: torch.Tensor) -> Any:
        made = operator.attrgetter("a"), operator.itemgetter(1, 2), operator.methodcaller("m", 2, k=3)
        return x + 1, made, [type(one) for one in made], callable(made[0])

    found = stator.compile(program, backend="eager", fullgraph=True)(X)
    assert repr(found) == repr(program(X))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: operator.attrgetter(),
        lambda: operator.attrgetter(1),
        lambda: operator.attrgetter("a", k=1),
        lambda: operator.methodcaller(),
        lambda: operator.methodcaller(3),
        lambda: operator.itemgetter(0)(1, 2),
        lambda: operator.itemgetter(0)([1], k=2),
    ],
)
def test_wrong_arguments(wrong: Callable[[], Any]) -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            wrong()
        except TypeError as error:
            return x + 1, str(error)

    assert repr(stator.compile(program, backend="eager")(X)) == repr(program(X))
