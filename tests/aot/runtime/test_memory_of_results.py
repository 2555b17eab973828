"""Results of overlapping memory get their own memory; parameters that a graph copies into others still require grad."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stator


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_pieces_of_an_expanded_tensor(backend: str) -> None:
    x = torch.randn(1, 5, 5).expand(4, 5, 5)
    with torch.no_grad():
        ours = stator.compile(lambda x: torch.unsafe_chunk(x, 5, -1), fullgraph=True, backend=backend)(x)
    for piece, eager in zip(ours, torch.unsafe_chunk(x, 5, -1), strict=True):
        assert torch.equal(piece, eager)


def test_elements_that_share_an_address_partly_are_written_to_as_in_eager() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).sum()

    ours, theirs = (torch.as_strided(torch.arange(20.0), (3, 4), (2, 1)) for _ in range(2))
    found = stator.compile(function, backend="aot_eager")(ours)
    assert torch.equal(found, function(theirs)) and torch.equal(ours, theirs)


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
