"""Branches that only choose an int are a smaller or a larger number, and need no version for each side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import Counts, assert_same

import stator

pytestmark = pytest.mark.fixed_sizes


def cut(x, k):
    n = x.shape[0]
    if n > 5:
        n = 5
    return x[:n] * 2


def at_least(x, k):
    n = x.shape[0]
    if n < 6:
        n = 6
    return x.new_zeros(n) + x[0, 0]


def the_smaller(x, k):
    n, m = x.shape
    first = n if n < m else m
    return x[:first, :first]


def in_order(x, k):
    n, m = x.shape
    if n >= m:
        low, high = m, n
    else:
        low, high = n, m
    return x.new_ones(low, high)


def in_a_range(x, k):
    n = x.shape[0]
    if n > 8:
        n = 8
    if n < 4:
        n = 4
    return x.new_ones(n)


def that_is_not(x, k):
    n = x.shape[0]
    if not n > 5:
        n = n + 1 - 1
    else:
        n = 5
    return x[:n] * 2


def of_an_argument(x, k):
    if k > 3:
        k = 3
    return x * k


def of_data(x, k):
    n = int((x > 0).sum())
    if n > 5:
        n = 5
    return x.flatten()[:n] + n


class Window:
    def __init__(self, seen: int) -> None:
        self.size, self.seen = 6, seen

    def length(self, rows: int) -> int:
        full = self.seen >= self.size
        if full:
            length = self.size - 1 + rows
        else:
            length = self.seen + rows
        return length


def of_attributes(x, k):
    return x.new_ones(k.length(x.shape[0]))


def returned(x, k):
    return x.new_ones(_at_most_six(x.shape[0]), _at_least_five(x.shape[1]))


def _at_most_six(n):
    if n > 6:
        return 6
    m = n + 1 - 1
    return m


def _at_least_five(n):
    if n > 5:
        return n
    else:
        return 4 + 1


def with_a_short_end(x, k):
    n = x.shape[0]
    if n > 5:
        m = 5
    else:
        m = n
    return x * m


_SHAPES = ((3, 5), (4, 6), (9, 7), (6, 9), (17, 11), (17, 3))
PROGRAMS: dict[Any, Any] = dict.fromkeys(
    (cut, at_least, the_smaller, in_order, in_a_range, that_is_not, of_data, returned, with_a_short_end), (0,) * 6
)
PROGRAMS[of_an_argument] = (1, 2, 7, 3, 4, -1)
PROGRAMS[of_attributes] = tuple(map(Window, (1, 2, 9, 5, 6, 7)))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_one_version_serves_both_sides(program: Any, backend: str) -> None:
    compiled, counts = stator.compile(program, backend=backend), Counts()
    for shape, k in zip(_SHAPES, PROGRAMS[program], strict=True):
        x = torch.randn(shape)
        assert_same(compiled(x, k), program(x, k))
    assert (counts.compilations, counts.breaks) == (2, 0)


def another_number(x):
    n = x.shape[0]
    if n > 5:
        n = 16
    return x.new_ones(n)


def with_an_effect(x, seen=[]):  # noqa: B006
    n = x.shape[0]
    if n > 5:
        n = seen.append(n) or 5
    return x[:n]


def a_truth(x):
    n = x.shape[0]
    if n > 5:
        n = True
    return x * n


def one_variable_alone(x):
    if x.shape[0] > 5:
        k = 5
    try:
        return x * k
    except UnboundLocalError:
        return x


@pytest.mark.parametrize("program", [another_number, with_an_effect, a_truth, one_variable_alone])
def test_other_branches_have_a_version_for_each_side(program: Any) -> None:
    compiled, counts = stator.compile(program, backend="eager", dynamic=True), Counts()
    for rows in (3, 4, 9, 17, 2):
        x = torch.randn(rows, 2)
        assert_same(compiled(x), program(x))
    assert counts.compilations == 2
