"""Products of one matrix with several frozen weights are one product, where nothing else sees their memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.differential import FUSED, NARROW, assert_same
from torch import fx, nn
from torch.nn import functional as F

import stator
from stator.inductor import passes
from stator.inductor.passes import merged_products

Forward = Callable[["Layer", torch.Tensor], object]


class Layer(nn.Module):
    def __init__(self, forward: Forward, bias: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 48, bias), nn.Linear(32, 48, bias), nn.Linear(32, 48, bias)
        self.gate, self.up, self.down = nn.Linear(32, 64, bias), nn.Linear(32, 20, False), nn.Linear(48, 32)
        self.rows = nn.ParameterList([nn.Parameter(torch.randn(32, columns)) for columns in (24, 40)])
        self.function = forward

    def forward(self, x: torch.Tensor) -> object:
        return self.function(self, x)


def attention(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    def heads(y: torch.Tensor) -> torch.Tensor:
        return y.view(*x.shape[:-1], 4, 12).transpose(1, 2)

    attended = F.scaled_dot_product_attention(heads(layer.q(x)), heads(layer.k(x)), heads(layer.v(x)))
    return x + layer.down(attended.transpose(1, 2).reshape(*x.shape[:-1], 48))


def in_loops(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.silu(layer.q(x)) * layer.k(x) - layer.v(x).amax(-1, keepdim=True)


def by_rows(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return (x @ layer.rows[0]).tanh().sum(-1) + (x @ layer.rows[1]).exp().sum(-1)


def of_two_kinds(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Some with a bias, some without, some that lie by rows."""
    plain = F.linear(x, layer.up.weight * 2).relu()
    return layer.q(x).sin() + layer.k(x).cos() + (plain.sum(-1, True) * (x @ layer.rows[0]).sum(-1, True))


def one_weight_twice(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return layer.q(x).sin() + F.linear(x, layer.q.weight, layer.k.bias).cos()


def returned(layer: Layer, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return layer.q(x), layer.k(x).view(-1, 4, 12).transpose(0, 1), layer.v(x).relu()


def products_of_products(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return layer.down(layer.q(x)) + layer.down(layer.k(x) * 2)


# by name: the program, the number of products before and after
CASES: dict[str, tuple[Forward, int, int]] = {
    "attention": (attention, 4, 2),
    "read by loops": (in_loops, 3, 1),
    "weights by rows": (by_rows, 2, 1),
    "of two kinds": (of_two_kinds, 4, 3),
    "one weight twice": (one_weight_twice, 2, 1),
    "returned": (returned, 3, 3),
    "products of products": (products_of_products, 4, 4),
}


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of products before and after the pass."""
    found: list[int] = []
    merge = merged_products.merge_products

    def count(gm: fx.GraphModule) -> int:
        return sum(node.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) for node in gm.graph.nodes)

    def note(gm: fx.GraphModule) -> fx.GraphModule:
        found.append(count(gm))
        gm = merge(gm)
        found.append(count(gm))
        return gm

    monkeypatch.setattr(passes, "PASSES", tuple(note if one is merge else one for one in passes.PASSES))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("forward", "before", "after"), CASES.values(), ids=CASES)
def test_equal_eager(
    forward: Forward, before: int, after: int, bias: bool, dtype: torch.dtype, products: list[int]
) -> None:
    torch.manual_seed(0)
    model = Layer(forward, bias or forward is one_weight_twice).eval().to(dtype)
    frozen = stator.compile(model, fullgraph=True, options={"freezing": True, "verify": True})
    for rows in (10, 1):
        x = torch.randn(2, rows, 32, dtype=dtype)
        with torch.no_grad():
            assert_same(frozen(x), model(x), FUSED if dtype is torch.float32 else NARROW)
    assert products[0] == before
    # without biases, all products of one kind are merged
    assert products[1] == (after if bias or forward is not of_two_kinds else 2)


@pytest.mark.parametrize("rows", [1, 40])
def test_results_have_memory_of_their_own(rows: int) -> None:
    model = Layer(returned).eval()
    frozen = stator.freeze(model)
    with torch.no_grad():
        found = frozen(torch.randn(rows, 32))
    assert len({one.untyped_storage().data_ptr() for one in found}) == 3


@pytest.mark.fixed_sizes  # the size is a number
def test_large_results_are_not_merged(products: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """They would live until the last of them is read."""
    monkeypatch.setattr(merged_products, "_MOST_BYTES", 2 * 48 * 10 * 4)
    model = Layer(in_loops).eval()
    x = torch.randn(10, 32)
    with torch.no_grad():
        assert_same(stator.freeze(model)(x), model(x), FUSED)
    assert products == [3, 2]


def test_changed_weights() -> None:
    model = Layer(attention).eval()
    frozen = stator.freeze(model)
    x = torch.randn(2, 10, 32)
    with torch.no_grad():
        assert_same(frozen(x), model(x), FUSED)
        model.k.weight.mul_(2)
        assert_same(frozen(x), model(x), FUSED)


def test_without_freezing(products: list[int]) -> None:
    model = Layer(attention).eval()
    x = torch.randn(2, 10, 32)
    with torch.no_grad():
        assert_same(stator.compile(model, fullgraph=True)(x), model(x), FUSED)
    assert products == [4, 4]
