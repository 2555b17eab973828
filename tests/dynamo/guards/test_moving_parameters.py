"""Parameters that are other objects in other calls: code for one module serves another, and is not made for each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import stator


class Counting:
    """A backend that counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward


def _x() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_one_helper_for_many_layers() -> None:
    layers = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(12)]
    twins = copy.deepcopy(layers)
    backend = Counting()

    def block(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(layer(x))

    compiled = stator.compile(block, backend=backend)
    given, wanted = _x(), _x()
    for layer, twin in zip(layers, twins, strict=True):
        given, wanted = compiled(layer, given), block(twin, wanted)
        assert torch.equal(given, wanted)
        assert torch.equal(layer[1].running_mean, twin[1].running_mean)
    assert backend.graphs == 2


def _copied(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
    return copy.deepcopy(model)(x)


def _made(x: torch.Tensor, model: nn.Module) -> torch.Tensor:
    layer = nn.Linear(4, 4)
    nn.init.ones_(layer.weight)
    return model(layer(x) - layer.bias)


@pytest.mark.parametrize("function", [_copied, _made])
def test_modules_made_in_each_call(function: Callable[..., torch.Tensor]) -> None:
    model, backend = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Counting()
    compiled = stator.compile(function, backend=backend)
    for _ in range(10):
        assert torch.allclose(compiled(_x(), model), function(_x(), model), atol=1e-6)
    assert backend.graphs <= 6  # for two calls, and for all others


class Tied(nn.Module):
    """Writes to two parameters, which may be one."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        if tied:
            self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.one.weight.add_(1)
            self.other.weight.mul_(2)
        return self.other(self.one(x))


def test_whether_two_are_one_is_still_relied_on() -> None:
    compiled = stator.compile(lambda model, x: model(x), backend="eager")
    for tied in (False, False, False, True, False, True, True):
        model = Tied(tied)
        twin = copy.deepcopy(model)
        assert torch.equal(compiled(model, _x()), twin(_x()))
        assert torch.equal(model.one.weight, twin.one.weight)
        assert torch.equal(model.other.weight, twin.other.weight)


def test_what_asks_for_identity_gets_it() -> None:
    kept = nn.Linear(4, 4)

    def is_kept(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if model.weight is kept.weight else model(x)

    compiled = stator.compile(is_kept, backend="eager")
    for model in (nn.Linear(4, 4), nn.Linear(4, 4), kept, nn.Linear(4, 4), kept):
        assert torch.equal(compiled(model, _x()), is_kept(model, _x()))
