"""Batch normalisation with frozen statistics becomes part of what it reads, or arithmetic with constants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.differential import FUSED, assert_same
from tests.inductor.passes.conftest import GraphsAfter
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

import stator
from stator.inductor.passes import batch_norm

CONVOLUTION, PRODUCT, NORM = (
    f"aten.{name}.default" for name in ("convolution", "addmm", "_native_batch_norm_legit_no_training")
)
ARITHMETIC = {"aten.mul.Tensor", "aten.add.Tensor"}


@pytest.fixture
def graphs(graphs_after: GraphsAfter) -> list[fx.Graph]:
    return graphs_after(batch_norm.fold_batch_norms)


def frozen(model: nn.Module) -> nn.Module:
    for part in model.modules():
        if isinstance(part, _BatchNorm):
            if part.affine:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
            nn.init.normal_(part.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return model.eval()


class Rows(nn.Module):
    """A linear layer of rows [batch, rows, 16], whose columns are normalised as those of a matrix."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 32, bias), nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return self.norm(y.flatten(0, 1)).reshape_as(y)


class Both(nn.Module):
    """What is normalised has another reader."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.norm(y) + y


Case = tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]
IMAGE = (2, 4, 9, 9)
CASES: dict[str, Case] = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, affine=False)
        ),
        IMAGE,
        {CONVOLUTION},
    ),
    "linear layer": (lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32)), (6, 16), {PRODUCT}),
    "linear layer of several rows": (lambda: Rows(True), (2, 5, 16), {PRODUCT}),
    "linear layer without a bias": (lambda: Rows(False), (2, 5, 16), {PRODUCT}),
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 8, 3), nn.BatchNorm2d(8)),
        IMAGE,
        {CONVOLUTION, *ARITHMETIC},
    ),
    "rows, not columns": (
        lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(5)),
        (2, 5, 16),
        {PRODUCT, *ARITHMETIC},
    ),
    "nothing before": (
        lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3)),
        IMAGE,
        {CONVOLUTION, *ARITHMETIC},
    ),
    "another reader": (lambda: Both(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)), IMAGE, {CONVOLUTION, *ARITHMETIC}),
}


@pytest.mark.parametrize(("make", "shape", "remaining"), CASES.values(), ids=CASES)
def test_folded(
    make: Callable[[], nn.Module], shape: tuple[int, ...], remaining: set[str], graphs: list[fx.Graph]
) -> None:
    model, x = frozen(make()), torch.randn(shape)
    with torch.no_grad():
        assert_same(stator.freeze(model)(x), model(x), FUSED)
    (graph,) = graphs
    views = ("view", "_unsafe_view", "reshape", "t")
    operators = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert {name for name in operators if name.split(".")[1] not in views} == remaining


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_scales_that_are_not_finite_are_kept(wrong: float, graphs: list[fx.Graph]) -> None:
    model, x = frozen(nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32))), torch.randn(6, 16)
    with torch.no_grad():
        model[1].weight[3] = wrong  # type: ignore[index]
        assert_same(stator.freeze(model)(x), model(x), FUSED)
    assert NORM in {str(node.target) for node in graphs[0].nodes}


def test_changing_statistics_are_kept(graphs: list[fx.Graph]) -> None:
    model, x = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32)), torch.randn(6, 16)
    frozen(model)
    with torch.no_grad():
        assert_same(stator.compile(model)(x), model(x), FUSED)
    assert NORM in {str(node.target) for node in graphs[0].nodes}
