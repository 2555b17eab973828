"""Branches on uniform random numbers of which only one can be taken are captured; the numbers are drawn anyway."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base.errors import Unsupported
from stator.graph.operators.rng_comparisons import outcome

COMPARISONS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


@pytest.mark.parametrize("name", COMPARISONS)
def test_outcomes_hold_for_all_numbers_and_are_found_where_there_are_any(name: str) -> None:
    """Over the ends of [0, 1) and a point between."""
    inside = (0.0, 0.5, math.nextafter(1.0, 0.0))
    for bound in (-math.inf, -1.0, -1e-300, -0.0, 0.0, 1e-300, 0.5, 1.0, 2.0, math.inf):
        found = {COMPARISONS[name](number, bound) for number in inside}
        assert outcome(name, bound) == (found.pop() if len(found) == 1 else None), bound
    assert outcome(name, math.nan) is None


class Dropping(torch.nn.Module):
    """Layers left out at random, as transformers' layerdrop does it."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.training:
                dropped = torch.rand([])
                if dropped < self.probability:
                    continue
            x = layer(x)
        return x


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_layers_never_or_always_dropped_are_one_graph(probability: float) -> None:
    torch.manual_seed(0)
    model, x = Dropping(probability), torch.randn(2, 4)
    compiled = stator.compile(model, backend="eager", fullgraph=True)
    results = []
    for run in (model, compiled):
        torch.manual_seed(1)
        results.append((run(x), torch.rand(1)))  # the second shows that as many numbers were drawn
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def whole(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    return stator.compile(function, backend="eager", fullgraph=True)


UNKNOWN: dict[str, Callable[[], torch.Tensor]] = {
    "a bound inside": lambda: torch.rand([]) - 0.0 if torch.rand([]) < 0.5 else torch.zeros([]),
    "written to": lambda: torch.zeros([]) if torch.rand([]).sub_(1.0) < 0.0 else torch.ones([]),
    "computed with": lambda: torch.zeros([]) if torch.rand([]) - 1.0 < 0.0 else torch.ones([]),
    "other data": lambda: (lambda t: torch.zeros([]) if _given(t) < 0.0 else torch.ones([]))(torch.rand([])),
    "normal": lambda: torch.zeros([]) if torch.randn([]) < 0.0 else torch.ones([]),
    "a bound that rounds into the range": lambda: torch.zeros([]) if torch.rand([]) <= -1e-60 else torch.ones([]),
}


def _given(tensor: torch.Tensor) -> torch.Tensor:
    tensor.data = torch.randn([])
    return tensor


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_numbers_are_not_known(name: str) -> None:
    with pytest.raises(Unsupported):
        whole(lambda x: x + UNKNOWN[name]())(torch.ones(2))
