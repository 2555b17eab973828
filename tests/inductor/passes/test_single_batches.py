"""One product of a batch by a matrix is a product of two matrices; other batches stay batches."""

from __future__ import annotations

import pytest
import torch
from tests.differential import FUSED, assert_same
from torch import fx
from torch.nn import functional as F

import stator
from stator.inductor import passes
from stator.inductor.passes import single_batches


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The products in the graphs after the pass."""
    found: list[str] = []
    multiply = single_batches.multiply_single_batches

    def note(gm: fx.GraphModule) -> fx.GraphModule:
        gm = multiply(gm)
        targets = [str(node.target) for node in gm.graph.nodes]
        found.extend(name for name in targets if name in ("aten.mm.default", "aten.bmm.default", "aten.addmm.default"))
        return gm

    monkeypatch.setattr(passes, "PASSES", tuple(note if one is multiply else one for one in passes.PASSES))
    return found


@pytest.mark.fixed_sizes  # with symbols, linear layers have a decomposition of their own
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layer_of_transposed_rows(bias: bool, products: list[str]) -> None:
    x, weight, added = torch.randn(1, 16, 5).transpose(1, 2), torch.randn(8, 16), torch.randn(8) if bias else None
    assert_same(stator.compile(F.linear)(x, weight, added), F.linear(x, weight, added), FUSED)
    assert products == ["aten.mm.default"]


def test_gradients(products: list[str]) -> None:
    def step(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        F.linear(x.transpose(1, 2), weight).square().sum().backward()
        assert x.grad is not None and weight.grad is not None
        return [x.grad, weight.grad]

    x, weight = torch.randn(1, 16, 5), torch.randn(8, 16)
    assert_same(stator.compile(step)(x, weight), step(x, weight), FUSED)


@pytest.mark.fixed_sizes
def test_several_batches(products: list[str]) -> None:
    x, weight = torch.randn(3, 16, 5).transpose(1, 2), torch.randn(8, 16)
    assert_same(stator.compile(F.linear)(x, weight), F.linear(x, weight), FUSED)
    assert products == ["aten.bmm.default"]


def test_one_batch_of_two_batches(products: list[str]) -> None:
    x, y = torch.randn(1, 5, 16), torch.randn(1, 16, 8)
    assert_same(stator.compile(torch.bmm)(x, y), x @ y, FUSED)
    assert products == ["aten.bmm.default"]
