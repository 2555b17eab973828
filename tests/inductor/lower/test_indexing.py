"""Gathers and scatters against eager, including what is out of range."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import assert_lowers, lowered_of
from tests.inductor.lowered_evaluator import run


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_embedding_and_index_select():
    table, rows = torch.randn(10, 4), torch.randint(0, 10, (2, 5))
    assert_lowers(lambda t, i: F.embedding(i, t) * 2, table, rows)
    assert_lowers(lambda t, i: t.index_select(1, i[0] % 4), table, rows)


def test_gather():
    x, at = torch.randn(4, 6), torch.randint(0, 6, (4, 3))
    assert_lowers(lambda x, i: x.gather(1, i), x, at)
    assert_lowers(lambda x, i: (x.exp() * 2).gather(1, i), x, at)


ADVANCED = [
    lambda x, i, j: x[i],
    lambda x, i, j: x[:, i],
    lambda x, i, j: x[i, j],
    lambda x, i, j: x[i, :, j],
    lambda x, i, j: x[:, i, j],
    lambda x, i, j: x[i[:, None], j],
    lambda x, i, j: x[-1 - i],
    lambda x, i, j: x[..., i],
    lambda x, i, j: (x * 2)[i] + 1,
    lambda x, i, j: x[i][:, j],
]


@pytest.mark.parametrize("at", range(len(ADVANCED)))
def test_advanced_indexing(at):
    x, i, j = torch.randn(4, 4, 4), torch.randint(0, 4, (3,)), torch.randint(0, 4, (3,))
    assert_lowers(ADVANCED[at], x, i, j, strides=False)


def test_negative_indices_wrap_where_eager_wraps_and_fail_where_it_fails():
    x, at = torch.randn(5, 3), torch.tensor([-1, -5, 2])
    assert_lowers(lambda x, i: x[i], x, at)
    lowered = lowered_of(lambda x, i: F.embedding(i, x), [x, torch.tensor([0, 1])])
    with pytest.raises(IndexError):
        run(lowered, [x, torch.tensor([0, -1])])


@pytest.mark.parametrize("bad", [5, -6, 10**12])
def test_an_index_out_of_range_is_an_error(bad):
    x = torch.randn(5, 3)
    lowered = lowered_of(lambda x, i: x[i], [x, torch.tensor([0, 1])])
    with pytest.raises(IndexError):
        run(lowered, [x, torch.tensor([0, bad])])


def test_padding_of_a_gather_does_not_check_what_is_masked_off():
    x, at = torch.randn(5, 3), torch.randint(0, 5, (4,))
    assert_lowers(lambda x, i: F.pad(x[i], (0, 0, 2, 2)), x, at)


def test_scatter_add_and_accumulating_index_put():
    x, at, values = torch.zeros(6, 3), torch.randint(0, 6, (10, 3)), torch.randn(10, 3)
    assert_lowers(lambda x, i, v: x.scatter_add(0, i, v), x, at, values, tolerance=1e-5)
    assert_lowers(lambda x, i, v: x.index_put((i[:, 0],), v, accumulate=True), x, at, values, tolerance=1e-5)


def test_single_element_assignment():
    x, at = torch.randn(6, 3), torch.tensor([2])
    assert_lowers(lambda x, i: x.index_put((i,), torch.tensor(7.0)), x, at)


def test_assignment_through_a_mask():
    def function(x, m, v):
        y = x.clone()
        y[m] = 3.0
        y[m[:, 0]] = v
        return y

    x = torch.randn(6, 3)
    assert_lowers(function, x, x > 0, torch.tensor(-1.0))


def test_of_several_assignments_to_one_place_the_last_holds():
    x, at, values = torch.zeros(6, 3), torch.tensor([1, 1, 4]), torch.randn(3, 3)
    assert_lowers(lambda x, i, v: x.index_put((i,), v), x, at, values)
