"""Functions of torch that capture knows by name do in one graph as they do in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differential import Program, check, corpus
from torch import nn

PROGRAMS, program = corpus()


def vectors() -> torch.Tensor:
    return torch.linspace(-1, 2, 12).sin().reshape(4, 3).requires_grad_()


# ---- functions that call functions and modules of the program ----


class Distances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(), margin=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(x, x.detach() + 1, x.cos())


@program(vectors)
def triplets_by_a_module(x: torch.Tensor) -> Any:
    return F.triplet_margin_with_distance_loss(x, x + 1, x.cos(), distance_function=nn.PairwiseDistance(), swap=True)


@program(vectors)
def triplets_by_a_function(x: torch.Tensor) -> Any:
    distance = lambda one, other: (one - other).abs().sum(-1)  # noqa: E731
    return F.triplet_margin_with_distance_loss(x, x + 1, x.cos(), distance_function=distance, reduction="sum")


@program(Distances, vectors)
def triplets_in_a_module(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", PROGRAMS)
def test_one_graph(case: Program, backend: str) -> None:
    check(case, backend=backend, fullgraph=True, gradients=True)
