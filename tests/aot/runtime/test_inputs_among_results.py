"""Parameters that a graph copies into other inputs still require grad."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stator


class Copying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.online, self.target = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.target.load_state_dict(self.online.state_dict())
        return self.target(x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_parameter_that_is_copied_into_another_still_requires_grad(backend: str) -> None:
    model, x = Copying(), torch.ones(2, 4)
    compiled = stator.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(x).sum().backward()
        assert all(one.requires_grad for one in model.parameters())
        assert model.online.weight.grad is None and model.target.weight.grad is not None
