"""One product of a batch by a matrix is a product of two matrices; other batches stay batches."""

from __future__ import annotations

import pytest
import torch
from tests.differential import FUSED, assert_same
from tests.inductor.passes.conftest import GraphsAfter
from torch import fx
from torch.nn import functional as F

import stator
from stator.inductor.passes import single_batches

PRODUCTS = ("aten.mm.default", "aten.bmm.default", "aten.addmm.default")


@pytest.fixture
def graphs(graphs_after: GraphsAfter) -> list[fx.Graph]:
    return graphs_after(single_batches.multiply_single_batches)


def products(graphs: list[fx.Graph]) -> list[str]:
    return [name for graph in graphs for node in graph.nodes if (name := str(node.target)) in PRODUCTS]


@pytest.mark.fixed_sizes  # with symbols, linear layers have a decomposition of their own
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layer_of_transposed_rows(bias: bool, graphs: list[fx.Graph]) -> None:
    x, weight, added = torch.randn(1, 16, 5).transpose(1, 2), torch.randn(8, 16), torch.randn(8) if bias else None
    assert_same(stator.compile(F.linear)(x, weight, added), F.linear(x, weight, added), FUSED)
    assert products(graphs) == ["aten.mm.default"]


def test_gradients() -> None:
    def step(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        F.linear(x.transpose(1, 2), weight).square().sum().backward()
        assert x.grad is not None and weight.grad is not None
        return [x.grad, weight.grad]

    x, weight = torch.randn(1, 16, 5), torch.randn(8, 16)
    assert_same(stator.compile(step)(x, weight), step(x, weight), FUSED)


@pytest.mark.fixed_sizes
def test_several_batches(graphs: list[fx.Graph]) -> None:
    x, weight = torch.randn(3, 16, 5).transpose(1, 2), torch.randn(8, 16)
    assert_same(stator.compile(F.linear)(x, weight), F.linear(x, weight), FUSED)
    assert products(graphs) == ["aten.bmm.default"]


def test_one_batch_of_two_batches(graphs: list[fx.Graph]) -> None:
    x, y = torch.randn(1, 5, 16), torch.randn(1, 16, 8)
    assert_same(stator.compile(torch.bmm)(x, y), x @ y, FUSED)
    assert products(graphs) == ["aten.bmm.default"]
