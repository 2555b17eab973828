"""Whole steps that begin with zero_grad: one version, whether there were gradients before or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stator


def _steps(of: str, compiled: Callable[..., Any]) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    clear = optimizer.zero_grad if of == "optimizer" else model.zero_grad

    def step(x: torch.Tensor) -> torch.Tensor:
        clear()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = compiled(step)
    losses = [run(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))) for seed in range(3)]
    return [*losses, *model.parameters(), *(one.grad for one in model.parameters())]


@pytest.mark.parametrize("of", ["optimizer", "model"])
def test_a_step_is_compiled_once(of: str) -> None:
    expected = _steps(of, lambda step: step)
    with stator.assert_no_recompile():
        found = _steps(of, lambda step: stator.compile(step, backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(found, expected)
