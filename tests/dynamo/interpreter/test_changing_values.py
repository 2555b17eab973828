"""Code behind a graph break is compiled for as many sizes as the code before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.differential import ROUNDED, assert_same

import stator
from stator.base import counters

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing


def compilations(program: Callable[..., Any], calls: Sequence[Any]) -> list[int]:
    compiled = stator.compile(program, backend="aot_eager")
    needed = []
    for arguments in calls:
        before = counters.counts["dynamo.compiled_frames"]
        assert_same(compiled(*arguments), program(*arguments), ROUNDED)
        needed.append(counters.counts["dynamo.compiled_frames"] - before)
    return needed


@stator.disable
def above(x: torch.Tensor) -> torch.Tensor:
    return x[:-1] * 2


def test_the_result_of_the_operation_at_the_break_and_values_below_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sin() + (above(x).sum(0, keepdim=True) + x.cos())

    needed = compilations(program, [(torch.randn(rows, 3),) for rows in (3, 5, 7, 9)])
    assert needed[2:] == [0, 0], needed


def test_variables_of_a_called_function_that_breaks_where_sizes_change() -> None:
    def called(x: torch.Tensor) -> torch.Tensor:
        y, total = x.exp(), x.new_zeros(3)
        for at in range(x.shape[0]):
            total = total * 0.5 + x[at]
        return (y + total).cos()

    def program(x: torch.Tensor) -> torch.Tensor:
        z = x.sin()
        return called(x + 1) + z

    needed = compilations(program, [(torch.randn(rows, 3),) for rows in (9, 10, 12, 11, 13, 15)])
    assert needed[2:] == [0, 0, 0, 0], needed


def test_an_int_of_a_called_function_that_breaks() -> None:
    def called(x: torch.Tensor, count: int) -> torch.Tensor:
        x = x * 2
        stator.graph_break()
        total = x.new_zeros(3)
        for at in range(0, count, 2):
            total = total * 0.5 + x[at]
        return total

    def program(x: torch.Tensor) -> torch.Tensor:
        return called(x + 1, x.shape[0]) * x.sum()

    needed = compilations(program, [(torch.randn(rows, 3),) for rows in (3, 5, 7, 9, 8, 6)])
    assert needed[2:] == [0, 0, 0, 0], needed


def test_an_int_that_bounds_one_loop_and_then_another() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        count = x.shape[0]
        total = x.new_zeros(3)
        for at in range(count):
            total = total * 0.5 + x[at]
        for at in range(0, count, 2):
            total = total.sin() + x[at]
        return total

    needed = compilations(program, [(torch.randn(rows, 3),) for rows in (9, 10, 12, 11, 13, 15, 14)])
    assert sum(needed[3:]) <= 1, needed  # a body for several turns
