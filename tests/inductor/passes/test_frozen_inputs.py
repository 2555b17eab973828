"""Work on frozen tensors is done when a module is compiled: what of it, and how much memory it may take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.differential import FUSED, assert_same
from tests.inductor.passes.conftest import GraphsAfter
from torch import fx, nn
from torch.utils import _pytree as pytree

import stator
from stator.inductor.passes import constants


@pytest.fixture
def graphs(graphs_after: GraphsAfter) -> list[fx.Graph]:
    return graphs_after(constants.fold_constants)


class Weight(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight)


def called(graphs: list[fx.Graph]) -> set[str]:
    return {str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"}


FOLDED: dict[str, tuple[Callable[..., torch.Tensor], set[str]]] = {
    "cast": (lambda x, w: x.double() @ w.double(), {"aten._to_copy.default"}),
    "cast and transposition": (lambda x, w: x @ w.double().t().float(), set()),
    "arithmetic": (lambda x, w: x * (w.abs() + 1).rsqrt(), {"aten.mul.Tensor"}),
    "reduction": (lambda x, w: x / w.norm(dim=0), {"aten.div.Tensor"}),
    "product of weights": (lambda x, w: x + w @ w, {"aten.add.Tensor"}),
}


@pytest.mark.parametrize(("function", "remaining"), FOLDED.values(), ids=FOLDED)
def test_folded(function: Callable[..., torch.Tensor], remaining: set[str], graphs: list[fx.Graph]) -> None:
    model = Weight(function).eval()
    x = torch.randn(16, 16)
    with torch.no_grad():
        assert_same(stator.freeze(model)(x), model(x), FUSED)
    assert called(graphs) <= remaining | {"aten.mm.default"}
    assert graphs and all(node.op != "call_function" or _reads_input(node) for graph in graphs for node in graph.nodes)


def _reads_input(node: fx.Node) -> bool:
    return any(source.op == "placeholder" or _reads_input(source) for source in node.all_input_nodes)


def test_constants_do_not_grow(graphs: list[fx.Graph]) -> None:
    """A repeated weight stays a loop over the weight."""
    model = Weight(lambda x, w: x + w.repeat(64, 64).sin()).eval()
    x = torch.randn(1024, 1024)
    with torch.no_grad():
        assert_same(stator.freeze(model)(x), model(x), FUSED)
    assert "aten.sin.default" in called(graphs)


def test_views_stay_views(graphs: list[fx.Graph]) -> None:
    model = Weight(lambda x, w: x @ w.view(32, 8)[4:20].t().contiguous().t()[:, :8].t()).eval()
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert_same(stator.freeze(model)(x), model(x), FUSED)


def test_under_autocast() -> None:
    """Constants are computed as the graph says, which holds the casts of autocast already."""
    model = Weight(lambda x, w: x.double() @ (w @ w).double()).eval()
    x = torch.randn(4, 16)
    frozen = stator.freeze(model)
    for enabled in (True, False):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert_same(frozen(x), model(x), FUSED)


def test_random_numbers_are_drawn_in_each_call() -> None:
    model = Weight(lambda x, w: x + nn.functional.dropout(w, 0.5, True)).eval()
    frozen = stator.freeze(model)
    x = torch.zeros(16, 16)
    assert not torch.equal(frozen(x), frozen(x))


def test_default_has_no_constants(graphs: list[fx.Graph]) -> None:
    model = Weight(lambda x, w: x * w.abs()).eval()
    with torch.no_grad():
        stator.compile(model)(torch.randn(16, 16))
    assert "aten.abs.default" in called(graphs)
    assert not pytree.tree_leaves([node for graph in graphs for node in graph.nodes if node.op == "get_attr"])
