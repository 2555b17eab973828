"""torch.fx writes a graph as Python, operators as operators, and backends may run that text. Numbers in it that start
with a sign mean what they did in the program."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

OPERATORS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
    *(operator.lt, operator.eq, operator.ge),
]
NUMBERS: list[Any] = [-2.0, -3, -0.0, 2.5, float("-inf"), complex(0, -1)]


@pytest.mark.parametrize("function", OPERATORS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numbers_beside_operators(function: Callable[[Any, Any], Any], number: Any) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(number, x), function(x, number)]

    x = torch.arange(1.0, 5.0)
    try:
        expected = program(x)
    except (RuntimeError, NotImplementedError):
        pytest.skip("eager refuses it")
    for found, wanted in zip(stator.compile(program, backend=lambda gm, _: gm)(x), expected, strict=True):
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_a_number_to_the_power_of_a_tensor_in_place() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        base: Any = -2.0
        base **= x
        return base

    x = torch.arange(4.0)
    assert torch.equal(stator.compile(program, backend=lambda gm, _: gm, fullgraph=True)(x), program(x))
