"""Adding and repeating deques in captured code."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.zeros(1)
Program = Callable[[torch.Tensor, Any, int], Any]


def _in_place(x: torch.Tensor, d: Any, n: int) -> Any:
    alias = d
    d *= n
    return x, alias is d


def _while_iterating(x: torch.Tensor, d: Any, n: int) -> Any:
    items = iter(d)
    d *= n
    try:
        return x, next(items)
    except (RuntimeError, StopIteration) as error:
        return x, str(error)


def _with_a_list(x: torch.Tensor, d: Any, n: int) -> Any:
    try:
        return d + [n]  # noqa: RUF005
    except TypeError as error:
        return x, str(error)


PROGRAMS: dict[str, Program] = {
    "added": lambda x, d, n: (x, d + deque([7], maxlen=9), (d + deque([7])).maxlen, deque([7, 8]) + d),
    "repeated": lambda x, d, n: (x, d * n, n * d, (d * n).maxlen),
    "repeated in place": _in_place,
    "repeated while it is iterated": _while_iterating,
    "a list is refused": _with_a_list,
}


class Window(deque):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("make", [deque, Window])
@pytest.mark.parametrize("bound", [None, 3, 0])
@pytest.mark.parametrize("times", [2, 1, 0, -1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_what_became_of_the_deque_are_eager_s(name: str, times: int, bound: int | None, make: Any) -> None:
    program = PROGRAMS[name]
    given, expected_given = make([1, 2], bound), make([1, 2], bound)
    result = stator.compile(program, backend="eager")(X, given, times)
    expected = program(X, expected_given, times)
    assert result == expected and given == expected_given
    assert [type(part) for part in result] == [type(part) for part in expected]


def test_there_is_no_break() -> None:
    for name in ("added", "repeated", "repeated in place"):
        stator.compile(PROGRAMS[name], backend="eager", fullgraph=True)(X, deque([1]), 2)
