"""zip() objects from outside of a captured frame, whose number of iterators changes."""

from __future__ import annotations

import pytest
import torch
from tests.differential import Counts

import stator


def over_rows(x, pairs):
    for row in pairs:
        x = x * len(row) + 1
    return x


def unpacked(x, pairs):
    first, second = pairs
    return x * len(first) + len(second)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("program", [over_rows, unpacked])
def test_each_row_has_an_item_of_each_iterator(program, fullgraph: bool) -> None:
    compiled = stator.compile(program, backend="eager", fullgraph=fullgraph)
    x = torch.randn(3)
    for count in (3, 5, 2, 7):
        found, expected = (call(x, zip(*[[1, 2]] * count, strict=False)) for call in (compiled, program))
        assert torch.equal(found, expected)


def columns_of(x):
    pairs = (x * 4).long().clamp(0, 4)
    rows, columns = zip(*pairs, strict=False)
    grid = x.new_zeros(5, 5)
    grid[rows, columns] = 1
    return grid + 1


def around(x):
    return columns_of(x + 0.1) * 2


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(("program", "most"), [(columns_of, 6), (around, 9)])
def test_columns_of_a_changing_number_of_rows_are_compiled_a_few_times(program, most: int) -> None:
    compiled = stator.compile(program, backend="eager")
    counts = Counts()
    for rows in (6, 9, 4, 11):
        x = torch.rand(rows, 2)
        assert torch.equal(compiled(x), program(x))
    assert counts.compilations <= most
    before = counts.compilations
    for rows in (3, 8, 2, 13, 5):
        x = torch.rand(rows, 2)
        assert torch.equal(compiled(x), program(x))
    assert counts.compilations == before
