"""Arrays whose sizes change from call to call: conversions to tensors need one version for many sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import Counts, assert_same

import stator


def read(x: torch.Tensor, table: np.ndarray) -> Any:
    return x * torch.from_numpy(table) + torch.tensor(table).sum(), torch.as_tensor(table, dtype=torch.float32)


def given_back(x: torch.Tensor, table: np.ndarray) -> Any:
    y = torch.from_numpy(table)
    return x[:, : y.shape[1]] + y, y[1:], table


def written(x: torch.Tensor, table: np.ndarray) -> Any:
    torch.from_numpy(table).mul_(2)
    return x + torch.from_numpy(table)


def drawn(x: torch.Tensor, table: np.ndarray) -> Any:
    chosen = torch.tensor(np.random.choice(2, tuple(x.shape)), dtype=torch.bool)
    y = x.clone()
    y[chosen] = 0.0
    return y + torch.from_numpy(table)


def by_rules_of_numpy(x: torch.Tensor, table: np.ndarray) -> Any:
    return x + torch.from_numpy(np.sin(table) + table.shape[0]), table.T.sum(), len(table)


def arguments(call: int) -> tuple[torch.Tensor, np.ndarray]:
    rows, columns = 2 + call % 3, 4 + call
    table = np.arange(float(rows * columns)).reshape(rows, columns)
    return torch.ones(rows, columns, dtype=torch.float64), np.asfortranarray(table) if call % 4 == 3 else table


def compare(function: Callable[..., Any], dynamic: bool | None) -> int:
    """The number of versions for twelve calls of different sizes."""
    compiled, counts = stator.compile(function, backend="eager", dynamic=dynamic), Counts()
    for call in range(12):
        ours, theirs = arguments(call), arguments(call)
        np.random.seed(call)
        expected = function(*theirs)
        np.random.seed(call)
        assert_same([compiled(*ours), *ours], [expected, *theirs])
    return counts.compilations


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [read, given_back, written])
def test_conversions_take_symbols_for_sizes(function: Callable[..., Any], dynamic: bool | None) -> None:
    assert compare(function, dynamic) <= 3  # arrays by rows, by columns, and the first of all


def test_results_of_numpy_behind_a_break_take_symbols_for_sizes() -> None:
    assert compare(drawn, None) <= 8


@pytest.mark.filterwarnings("ignore:stator")
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_rules_of_numpy_need_constants(dynamic: bool | None) -> None:
    compare(by_rules_of_numpy, dynamic)
