"""Whole steps of a network with ReLU: which operators of them are called, and how they round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stator
from stator.base import counters

Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
FORMS: dict[str, Make] = {
    "lists": lambda owned: torch.optim.Adam(owned, 0.01, foreach=True),
    "one by one": lambda owned: torch.optim.AdamW(owned, 0.01, foreach=False, weight_decay=0.1),
    "fused": lambda owned: torch.optim.Adam(owned, 0.01, fused=True),
    "momentum": lambda owned: torch.optim.SGD(owned, 0.01, momentum=0.9),
    "signs": lambda owned: torch.optim.Rprop(owned, 0.01),
}


def train(make: Make, compiled: Callable[..., Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    optimizer = make(model.parameters())

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compiled(step)
    losses = [run(torch.randn(8, 20), torch.randint(0, 5, (8,))) for _ in range(3)]
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize("name", FORMS)
def test_the_update_is_kernels(name: str) -> None:
    """Only operators of forward and backward are called, for any number of parameters."""
    expected = train(FORMS[name], lambda step: step)
    counters.clear()
    found = train(FORMS[name], lambda step: stator.compile(step, fullgraph=True, options={"verify": True}))
    called = {key.partition(":aten.")[2].partition(".")[0] for key in counters.counts if "inductor_fallback" in key}
    assert called <= {"addmm", "mm"}
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_it_rounds_as_eager_does_where_that_is_asked_for() -> None:
    def make(owned: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(owned, 0.01, foreach=False)

    expected = train(make, lambda step: step)
    found = train(make, lambda step: stator.compile(step, options={"exact_rounding": True}))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
