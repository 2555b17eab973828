"""Sums of whole vectors in rows chosen by data equal eager's, however many rows there are and threads share them."""

from __future__ import annotations

import pytest
import torch
from tests.differential import FUSED, assert_same
from tests.threads import threads

import stator

LARGE = 4000  # elements of a row, so that threads share the sums


@pytest.mark.filterwarnings("error::RuntimeWarning")  # of a kernel that cannot be compiled
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("numbers", [1, 2, 7])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_rows(dim: int, numbers: int, count: int) -> None:
    x, shape = torch.randn(20, 20, LARGE), [20, 20, LARGE]
    shape[dim] = numbers
    rows, added = torch.randint(0, 20, (numbers,)), torch.randn(shape)
    compiled = stator.compile(lambda x, rows, added: x.index_add(dim, rows, added), fullgraph=True)
    with threads(count):
        assert_same(compiled(x, rows, added), x.index_add(dim, rows, added), FUSED)
