"""Functions that share a variable, and ones that do not: which cell is whose is relied on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.rand(3, generator=torch.Generator().manual_seed(5))
Functions = tuple[Callable[..., Any], ...]


def sharing(number: float) -> Functions:
    def scaled(x: Any) -> Any:
        return x * number

    def shifted(x: Any) -> Any:
        return x + number

    def put(value: float) -> None:
        nonlocal number
        number = value

    return scaled, shifted, put


def apart(*numbers: float) -> Functions:
    return tuple(sharing(number)[at] for at, number in enumerate(numbers))


def reads(x: Any, scaled: Any, shifted: Any, put: Any) -> Any:
    return scaled(x) - shifted(x)


def writes_first(x: Any, scaled: Any, shifted: Any, put: Any) -> Any:
    put(5.0)
    return scaled(x) - shifted(x)


def writes_between(x: Any, scaled: Any, shifted: Any, put: Any) -> Any:
    before = scaled(x) - shifted(x)
    put(5.0)
    return before, scaled(x) - shifted(x)


@pytest.mark.parametrize("program", [reads, writes_first, writes_between])
@pytest.mark.parametrize("first_shared", [True, False])
def test_functions_that_share_in_some_calls_only(program: Callable[..., Any], first_shared: bool) -> None:
    stator.reset()
    compiled = stator.compile(program, backend="eager")
    for shared in (first_shared, not first_shared, first_shared):
        one, other = (sharing(2.0) if shared else apart(2.0, 3.0, 4.0) for _ in range(2))
        torch.testing.assert_close(compiled(X, *one), program(X, *other), rtol=0, atol=0)
        torch.testing.assert_close(one[0](X), other[0](X), rtol=0, atol=0)


def with_own(number: float, *, writes: bool) -> tuple[Callable[..., Any], list[Any]]:
    def scaled(x: Any) -> Any:
        return x * number

    functions = [scaled]

    def reading(x: Any) -> Any:
        return functions[0](x) + number

    def writing(x: Any) -> Any:
        nonlocal number
        number += 1
        return functions[0](x) + number

    return writing if writes else reading, functions


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("first_own", [True, False])
def test_a_function_that_shares_the_compiled_one_s_variable(writes: bool, first_own: bool) -> None:
    stator.reset()
    (one, functions), (other, others) = with_own(2.0, writes=writes), with_own(2.0, writes=writes)
    own = functions[0], others[0]
    compiled = stator.compile(one, backend="eager")
    for is_own in (first_own, not first_own, first_own):
        functions[0], others[0] = own if is_own else [with_own(9.0, writes=False)[1][0] for _ in range(2)]
        torch.testing.assert_close(compiled(X), other(X), rtol=0, atol=0)


def with_late(*, filled: bool) -> tuple[Callable[..., Any], Callable[[], None]]:
    def late(x: Any) -> Any:
        try:
            return x * number
        except NameError:
            return x - 1

    def fill() -> None:
        nonlocal number
        number = 3.0

    if filled:
        number = 2.0
    return late, fill


def test_a_variable_that_is_filled_between_two_calls() -> None:
    def program(x: Any, function: Any) -> Any:
        return function(x + 1)

    stator.reset()
    compiled = stator.compile(program, backend="eager")
    late, fill = with_late(filled=False)
    assert torch.equal(compiled(X, late), program(X, late))
    fill()
    assert torch.equal(compiled(X, late), program(X, late))
