"""Backwards of results that depend on different inputs: the engine runs nodes of each device in a thread of its own."""

from __future__ import annotations

import pytest
import torch
from tests.differential import Tolerance, assert_same
from tests.gpu.device import DEVICE

import stator
from stator.base import counters

STEPS, LAYERS = 30, 12


def model_with_caches(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Like a language model that returns the keys and values of each layer beside its loss."""
    caches = []
    for weight in weights:
        key = (x @ weight).tanh()
        caches += [key, key * weight.sum()]
        x = x + key
    return x.square().mean(), *caches


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_one_backward_for_all_steps(mode: str) -> None:
    """float32, ‖difference‖ at most 1e-4 of ‖gradient‖ (default rounding of products)."""
    x = torch.randn(16, 32, device=DEVICE)
    weights = [(torch.randn(32, 32, device=DEVICE) / 6).requires_grad_() for _ in range(LAYERS)]
    model_with_caches(x, *weights)[0].backward()
    expected = [weight.grad for weight in weights]
    compiled = stator.compile(model_with_caches, fullgraph=True, mode=mode)
    before = counters.counts["compiled:backward"]
    for _ in range(STEPS):
        for weight in weights:
            weight.grad = None
        results = compiled(x, *weights)
        results[0].backward()
        assert_same([weight.grad for weight in weights], expected, Tolerance(1e-4, 1e-4))
    assert counters.counts["compiled:backward"] - before == 1
