"""Views of dictionaries in captured code: keys compare as sets do, values are none, neither has all methods of sets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.arange(3.0)
Program = Callable[[torch.Tensor, dict[Any, Any]], Any]


def values_are_no_set(x: torch.Tensor, given: dict[Any, Any]) -> Any:
    found = []
    for combine in (lambda: given.values() | {1}, lambda: {1} & given.values(), lambda: given.values() - given.keys()):
        try:
            found.append(combine())
        except TypeError:
            found.append("refused")
    return x + 1, found


def methods_of_sets(x: torch.Tensor, given: dict[Any, Any]) -> Any:
    names = ("union", "intersection", "issubset", "add", "copy", "isdisjoint")
    return x + 1, [hasattr(given.keys(), name) for name in names]


def compared(x: torch.Tensor, given: dict[Any, Any]) -> Any:
    keys, other = given.keys(), {3: 0, 1: 0}
    truths = [
        keys == other.keys(),
        keys != other.keys(),
        keys == {1, 3},
        {1, 3} == keys,
        keys <= other.keys(),
        keys < {1, 3, 5},
        keys >= {1},
        {1} < keys,
        keys == [1, 3],
        keys.isdisjoint({9}),
    ]
    return x + sum(truths), truths


def of_a_new_one(x: torch.Tensor, given: dict[Any, Any]) -> Any:
    made = {**given, 7: x}
    return made[7] + 1, made.keys() == given.keys(), made.keys() > given.keys(), made.keys() == {7, *given}


PROGRAMS: list[Program] = [values_are_no_set, methods_of_sets, compared, of_a_new_one]


@pytest.mark.parametrize("program", PROGRAMS)
def test_views_are_those_of_python(program: Program) -> None:
    compiled = stator.compile(program, backend="eager")
    for given in ({1: 2, 3: 4}, {1: 2, 3: 4}, {3: 4, 1: 2}, {1: 2}, {"a": 1, 1.0: 2}, {}):
        assert repr(compiled(X, dict(given))) == repr(program(X, dict(given)))  # type: ignore[call-overload]


def test_keys_are_compared_in_the_graph() -> None:
    run = stator.compile(lambda x, given: x + (given.keys() == {1, 3}), backend="eager", fullgraph=True)
    for given in ({1: 2, 3: 4}, {3: 4, 1: 2}, {1: 2}):
        assert torch.equal(run(X, given), X + (given.keys() == {1, 3}))


class Holder:
    """Keeps views of a dictionary that somebody else made."""

    def __init__(self, given: dict[str, float]) -> None:
        self.keys, self.values, self.items = given.keys(), given.values(), given.items()


def of_a_holder(x: torch.Tensor, held: Holder) -> Any:
    if held.keys:
        x = x + len(held.values)
    for (name, value), again in zip(held.items, held.keys, strict=True):
        x = x * value + len(name) + len(again)
    return x, held.keys, type(held.keys), "a" in held.keys


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_views_from_outside_are_followed(kind: type) -> None:
    given = kind(a=1.5, b=2.0)
    held = Holder(given)
    compiled = stator.compile(of_a_holder, backend="eager", fullgraph=True)
    for step in range(3):
        (x, keys, *rest), (wanted, _, *others) = compiled(X, held), of_a_holder(X, held)
        assert torch.equal(x, wanted) and keys is held.keys and rest == others
        given[f"longer{step}"] = step


def test_a_view_shows_what_captured_code_adds() -> None:
    def program(x: torch.Tensor, given: dict[str, Any], keys: Any) -> Any:
        given["new"] = x
        return x + len(keys), list(keys)

    def run(function: Callable[..., Any]) -> Any:
        given: dict[str, Any] = {"a": 1}
        return str(function(X, given, given.keys()))

    assert run(stator.compile(program, backend="eager", fullgraph=True)) == run(program)
