"""Branches on sizes that choose the smaller or the larger number: one version for both; other branches as before."""

from __future__ import annotations

import pytest
import torch
from tests.differential import Counts

import stator


def least(x):
    n = x.shape[0]
    if n > 5:
        n = 5
    return x[:n] * n


def least_as_expression(x):
    n = x.shape[0]
    return x[: n if n < 5 else 5] + (n if n < 5 else 5)


def greatest(x):
    n = x.shape[0]
    rest = n - 5 if n >= 5 else 0
    return x * rest


class Window:
    def __init__(self, width):
        self.width, self.length = width, 0

    def rows(self, more):
        is_full = self.length >= self.width
        if is_full:
            rows = self.width - 1 + more
        else:
            rows = self.length + more
        self.length += more
        return rows


WINDOWS: list[Window] = []


def window(x):
    return torch.arange(WINDOWS[0].rows(x.shape[0])) + x.sum()


def neither(x):
    """9 where n is 6 or more, 5 at most elsewhere: neither the smaller nor the larger one."""
    n = x.shape[0]
    if n > 5:
        n = 9
    return x + n


def with_an_effect(x, seen):
    n = x.shape[0]
    if n > 5:
        seen.append(n)
        n = 5
    return x[:n]


@pytest.mark.parametrize("program", [least, least_as_expression, greatest])
def test_one_version_serves_both_branches(program) -> None:
    compiled, counts = stator.compile(program, dynamic=True, backend="eager"), Counts()
    for rows in (7, 3, 5, 6, 4, 1, 12):
        x = torch.randn(rows, 2)
        assert torch.equal(compiled(x), program(x))
    assert counts.compilations == 1


def test_a_count_that_the_program_keeps() -> None:
    compiled, counts = stator.compile(window, dynamic=True, backend="eager"), Counts()
    found = []
    for call in (compiled, window):
        WINDOWS[:] = [Window(6)]
        torch.manual_seed(0)
        found.append([call(torch.randn(rows, 2)) for rows in (2, 1, 1, 1, 1, 1, 1, 2, 3)])
    assert all(map(torch.equal, *found))
    assert counts.compilations == 1


def test_other_branches_have_a_version_each() -> None:
    compiled, counts = stator.compile(neither, dynamic=True, backend="eager"), Counts()
    for rows in (7, 3, 5, 6):
        x = torch.randn(rows, 2)
        assert torch.equal(compiled(x), neither(x))
    assert counts.compilations == 2


def test_effects_happen_in_their_branch_alone() -> None:
    compiled = stator.compile(with_an_effect, dynamic=True, backend="eager")
    for rows in (3, 7, 5, 6):
        x, found, expected = torch.randn(rows, 2), [], []
        assert torch.equal(compiled(x, found), with_an_effect(x, expected))
        assert found == expected
