"""Small tables of whole numbers that a program fills piece by piece: their numbers are known while capturing."""

from __future__ import annotations

import pytest
import torch

import stator
from stator.base import counters
from stator.graph.tracing.tracer import trace

SIZES = [(2, 3), (4, 5), (6, 7)]


def filled_by_rows_and_columns(x: torch.Tensor) -> torch.Tensor:
    table = torch.empty((3, 2), dtype=torch.long)
    for level, (height, width) in enumerate(SIZES):
        table[level, 0] = height
        table[level, 1] = width
    starts = torch.cat((table.new_zeros((1,)), table.prod(1).cumsum(0)[:-1]))
    return x.reshape(table[0].tolist()) + starts.sum().item() + table[:, 0].sum()


def filled_from_tensors(x: torch.Tensor) -> torch.Tensor:
    table = x.new_empty(4, dtype=torch.int32)
    table[::2] = torch.tensor([5, 7])
    table[1::2].copy_(torch.arange(2))
    return x * table[3].item() + table.tolist()[2]


def written_over_again(x: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(3, dtype=torch.long)
    table[1:] = 4
    first = table.sum().item()
    table.zero_()
    table[2] = 1
    return x * first + table.sum().item()


def read_while_only_a_part_is_set(x: torch.Tensor) -> torch.Tensor:
    table = torch.empty(3, dtype=torch.long)
    table[0] = 2
    table[1] = 3
    return x * table[:2].sum().item()


def turned_in_place(x: torch.Tensor) -> torch.Tensor:
    table = torch.arange(3)
    table.unsqueeze_(1)
    wide = table.expand(3, 3).clone()
    wide.t_()
    return x * wide[0].tolist()[2] + wide[:, 0].sum().item() + table.squeeze_().tolist()[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "function",
    [
        filled_by_rows_and_columns,
        filled_from_tensors,
        written_over_again,
        read_while_only_a_part_is_set,
        turned_in_place,
    ],
)
def test_numbers_of_a_filled_table_are_known(function, backend: str) -> None:
    x = torch.randn(6)
    x = x if function is filled_by_rows_and_columns else x[:4]
    counters.clear()
    compiled = stator.compile(function, backend=backend)
    assert torch.equal(compiled(x), function(x))
    assert counters.counts["graphs"] == 1 and not counters.counts["graph_breaks"]


def test_a_table_turned_in_place_is_traced_as_it_lies() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(3).unsqueeze_(1).expand(3, 5)

    x = torch.randn(3, 5)
    assert torch.equal(trace(function, [x], keep=lambda _: True).graph(x)[0], function(x))


def added_to(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(2, dtype=torch.long)
    table[0] = 3
    table[1].add_(by)
    return x * table[1].item()


def never_set(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    table = torch.empty(2, dtype=torch.long)
    table[0] = 3
    return x + 0 * table.sum().item()


@pytest.mark.parametrize("function", [added_to, never_set])
def test_what_is_not_known_ends_the_graph(function) -> None:
    x = torch.randn(3)
    counters.clear()
    compiled = stator.compile(function, backend="eager", options={"unknown_sizes": False})
    for number in (5, 8):
        by = torch.tensor(number)
        assert torch.equal(compiled(x, by), function(x, by))
    assert counters.counts["graph_breaks"]
