"""Sets from outside: capture knows their members. A set of objects ends the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


class Thing:
    pass


ONE, OTHER = Thing(), Thing()
HANDLED = {torch.add, torch.mul}
THINGS = {ONE}
FIXED = frozenset([torch.sin])


def _by_function(x: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
    return function(x, 2) if function in HANDLED else x


def _by_object(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    return x + len(THINGS) if thing in THINGS else x - 1


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(_by_function, (torch.add, torch.sub, torch.mul, torch.add)), (_by_object, (ONE, OTHER, Thing(), ONE))],
)
def test_membership(function: Callable[..., torch.Tensor], arguments: tuple[Any, ...]) -> None:
    compiled, x = stator.compile(function, backend="eager", fullgraph=function is _by_function), torch.ones(3)
    for argument in arguments:
        assert torch.equal(compiled(x, argument), function(x, argument))


def test_the_set_may_change() -> None:
    chosen = {ONE}

    def f(x: torch.Tensor, thing: Thing) -> torch.Tensor:
        return x + 1 if thing in chosen else x

    compiled, x = stator.compile(f, backend="eager"), torch.ones(3)
    for change in (lambda: None, lambda: chosen.add(OTHER), lambda: chosen.remove(ONE), chosen.clear):
        change()
        assert torch.equal(compiled(x, ONE), f(x, ONE)) and torch.equal(compiled(x, OTHER), f(x, OTHER))


def test_functions_are_iterated_over() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for function in FIXED:
            x = function(x)
        return x

    x = torch.ones(3)
    assert torch.equal(stator.compile(f, backend="eager", fullgraph=True)(x), f(x))


def test_iterating_over_objects_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * sum(1 for one in {ONE, OTHER} | THINGS if type(one) is Thing)

    x = torch.ones(3)
    assert torch.equal(stator.compile(f, backend="eager")(x), f(x))


def test_a_recompile_reason_names_the_members() -> None:
    members: set[object] = {1, "a"}
    compiled = stator.compile(lambda x: x + len(members), backend="eager")
    compiled(torch.ones(2))
    members.add(5)
    members.discard("a")
    members.add("b")
    with stator.set_stance("fail_on_recompile"), pytest.raises(stator.RecompileError) as caught:
        compiled(torch.ones(2))
    assert "its members gained 'b', 5 and lost 'a'" in caught.value.reasons[0]


def test_a_guard_names_the_members() -> None:
    members = {(1, 2.5)}
    explanation = stator.explain(lambda x: x + len(members))(torch.ones(2))
    assert "members == {(1, 2.5)}" in "\n".join(str(guard) for guard in explanation.out_guards)


def test_a_dictionary_is_asked_for_a_set_made_in_the_call():
    table = {frozenset((1, 2)): 3, frozenset((1, "a")): 4}

    def program(x, a):
        return x * table[frozenset((1, 2))] + table[frozenset((1, a))]

    compiled, x = stator.compile(program, backend="eager"), torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(compiled(x, "a"), program(x, "a"))
