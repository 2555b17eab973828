"""Training graphs of one operator run as they are; graphs of two are compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator
from stator.base import counters


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def shifted_twice(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) * 2


@pytest.mark.parametrize(("function", "left"), [(shifted, 1), (shifted_twice, 0)])
def test_only_a_graph_of_one_operator_is_left_to_eager(
    function: Callable[[torch.Tensor], torch.Tensor], left: int
) -> None:
    stator.reset()
    before = counters.counts["left_to_eager"]
    x = torch.randn(5, requires_grad=True)
    result = stator.compile(function)(x)
    assert counters.counts["left_to_eager"] - before == left
    assert torch.equal(result, function(x))
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient, torch.full_like(x, 2 - left))
