"""The backward compares values with kept ones, as gradients of maxima do: sums are not computed again for it, because
they could round otherwise in another kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def largest_of_groups(x: torch.Tensor, y: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    scores = (x[group] * y).sum(-1)
    return torch.full((x.shape[0],), -1e9).scatter_reduce(0, group, scores, "amax")


def softmax_of_groups(x: torch.Tensor, y: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    scores = (x[group] * y).mean(-1) * 3
    largest = torch.full((x.shape[0],), -1e9).scatter_reduce(0, group, scores, "amax")
    weights = (scores - largest[group]).exp()
    return weights / torch.zeros(x.shape[0]).index_add(0, group, weights)[group]


def smallest_and_largest(x: torch.Tensor, y: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    lengths = (x[group] - y).square().sum(-1).sqrt()
    return torch.stack([lengths.amax(0), lengths.amin(0), lengths.norm(p=float("inf"))])


def those_above_a_rank(x: torch.Tensor, y: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    scores = (x[group] * y).sum(-1)
    return scores * (scores >= scores.topk(3).values[-1])


@pytest.mark.parametrize("rows", [5, 20, 64])
@pytest.mark.parametrize("program", [largest_of_groups, softmax_of_groups, smallest_and_largest, those_above_a_rank])
def test_gradients_of_maxima_of_sums_are_those_of_eager(program: Program, rows: int) -> None:
    x, y = torch.randn(rows, 6, requires_grad=True), torch.randn(3 * rows, 6, requires_grad=True)
    group = torch.arange(3 * rows) % rows
    expected = torch.autograd.grad(program(x, y, group).square().sum(), (x, y))
    found = torch.autograd.grad(stator.compile(program)(x, y, group).square().sum(), (x, y))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
