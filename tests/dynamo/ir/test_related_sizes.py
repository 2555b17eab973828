"""State that a frame itself changes has other sizes and numbers in the next call: these are symbols from the start."""

from __future__ import annotations

import pytest
import torch
from tests.differential import Counts

import stator


class Cache:
    def __init__(self) -> None:
        self.rows = None

    def add(self, x):
        if self.rows is None:
            self.rows = torch.tensor([])
        self.rows = torch.cat([self.rows, x])
        return self.rows


def append(cache, x):
    return cache.add(x * 2).sum(0)


def test_a_cache_that_grows_needs_a_version_for_the_first_call_and_one_for_the_others() -> None:
    compiled, counts = stator.compile(append, backend="eager"), Counts()
    for rows in (4, 7, 1):
        ours, eager = Cache(), Cache()
        for more in (rows, 1, 1, 3):
            x = torch.randn(more, 5)
            assert torch.equal(compiled(ours, x), append(eager, x))
            assert torch.equal(ours.rows, eager.rows)
    assert counts.compilations == 2


class Keep:
    rows: torch.Tensor | None = None


def keep(state, x):
    state.rows = x + 1
    return x * 2


@pytest.mark.fixed_sizes
def test_state_of_one_size_makes_no_symbols() -> None:
    compiled, counts = stator.compile(keep, backend="eager"), Counts()
    state = Keep()
    for _ in range(3):
        compiled(state, torch.randn(4, 5))
    assert counts.compilations == 1
    compiled(state, torch.randn(6, 5))
    compiled(state, torch.randn(7, 5))
    assert counts.compilations == 2


class Slots:
    """Rows of a fixed number, made at first use."""

    def __init__(self, most: int) -> None:
        self.most, self.used, self.ready = most, torch.tensor(0), False

    def put(self, x):
        if not self.ready:
            self.rows = torch.zeros(x.shape[0], self.most, x.shape[2])
            self.ready = True
        self.rows.index_copy_(1, torch.arange(x.shape[1]) + self.used, x)
        self.used.add_(x.shape[1])
        return self.rows


def put(slots, x, mask):
    return slots.put(x * 2).sum(1) + mask.sum(1, keepdim=True)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("first", [(2, 6, 9), (1, 4, 12), (3, 1, 12), (1, 1, 7)])
def test_state_that_is_made_at_first_use_needs_no_version_for_the_first_sizes(first) -> None:
    compiled, counts = stator.compile(put, backend="eager"), Counts()
    for batch, length, most in (first, (3, 4, 12), (1, 1, 7), (5, 8, 11), (4, 1, 3), (1, 3, 8)):
        ours, eager = Slots(most), Slots(most)
        for more in (length, 1, 1):
            x, mask = torch.randn(batch, more, 5), torch.ones(batch, most)
            assert torch.equal(compiled(ours, x, mask), put(eager, x, mask))
        assert torch.equal(ours.rows, eager.rows) and torch.equal(ours.used, eager.used)
    assert counts.compilations == 2


@pytest.mark.fixed_sizes
def test_a_flag_without_a_tensor_makes_no_symbols() -> None:
    def begin(state, x):
        if state.rows is None:
            state.rows = "begun"
        return x * 2

    compiled, counts = stator.compile(begin, backend="eager"), Counts()
    for rows in (4, 6, 7):
        x = torch.randn(rows, 5)
        assert torch.equal(compiled(Keep(), x), x * 2)
    assert counts.compilations == 2


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


def test_a_counter_needs_one_version() -> None:
    model, eager, counts = Counting(), Counting(), Counts()
    compiled = stator.compile(model, backend="eager")
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(compiled(x), eager(x))
    assert model.steps == eager.steps == 4
    assert counts.compilations == 1


def windowed(state, x):
    rows = torch.cat([state.rows, x])
    state.rows = rows[-6:]
    return rows.sum(0)


def test_strides_of_state_that_the_frame_slices() -> None:
    """The kept rows are a part of larger memory once there are more than fit."""
    compiled, counts = stator.compile(windowed, backend="eager"), Counts()
    ours, eager = Keep(), Keep()
    ours.rows, eager.rows = torch.zeros(2, 3).t(), torch.zeros(2, 3).t()
    for more in (1, 1, 1, 1, 2, 1, 1):
        x = torch.randn(more, 2)
        assert torch.equal(compiled(ours, x), windowed(eager, x))
        assert ours.rows.stride() == eager.rows.stride()
    assert counts.compilations <= 3
