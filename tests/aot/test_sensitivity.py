"""Which graphs are said to multiply differences in rounding, and by which operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import stator
from stator.aot import amplifier_of


def amplifier(function: Callable[..., Any], *inputs: torch.Tensor) -> str | None:
    found: list[fx.Node | None] = []

    def backend(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        found.append(amplifier_of(gm))
        return gm

    stator.compile(function, backend=backend, fullgraph=True)(*inputs)
    (node,) = found
    return None if node is None else node.name


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


JUMPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "relu": F.relu,
    "called_as_an_overload": lambda x: torch.ops.aten.relu.default(x),
    "written_in_place": lambda x: (x * 2).relu_(),
    "bounds": lambda x: x.clamp(-1, 1),
    "larger_of_two": lambda x: torch.maximum(x, x.flip(0)),
    "pooling": lambda x: F.max_pool1d(x, 2),
    "chosen": lambda x: x.topk(2).values,
    "compared": lambda x: torch.where(x > 0, x, x.exp()),
    "rounded": lambda x: x.round() * x,
    "to_integers": lambda x: x.long() * x,
    "batch": lambda x: F.batch_norm(x, None, None, training=True),
    "instances": lambda x: F.instance_norm(x[None]),
    "to_any_integers": lambda x: x.to(torch.int16) * x,
    "largest_so_far": lambda x: x.cummax(1).values,
    "sums_of_absolute_values": lambda x: torch.linalg.vector_norm(x, 1, 0),
    "norms_by_name": lambda x: x.norm(p=float("inf")),
    "distances": lambda x: torch.cdist(x, x.flip(0), p=1.0),
    "largest_of_a_bag": lambda x: F.embedding_bag(torch.arange(6), x, torch.tensor([0, 2]), mode="max"),
    "largest_of_an_index": lambda x: x.new_zeros(3, 8).index_reduce(0, torch.arange(6) % 3, x, "amax"),
    "one_hot": lambda x: F.gumbel_softmax(x, hard=True),
    "kink": lambda x: F.elu(x, 2.0),
    "places_in_an_image": lambda x: F.grid_sample(torch.ones(1, 1, 3, 3), x.view(1, 4, 6, 2), align_corners=False),
    "bounded_norms": lambda x: x.renorm(2, 0, 1.0),
    "recurrent": lambda x: torch.rnn_relu_cell(x, x, torch.ones(8, 8), torch.ones(8, 8)),
    "recomputed": lambda x: checkpoint(F.relu, x, use_reentrant=False),
    "transformed": lambda x: torch.func.grad(lambda y: y.relu().sum())(x),
}


@pytest.mark.parametrize("name", JUMPS)
def test_found(name: str) -> None:
    assert amplifier(JUMPS[name], leaf(6, 8)) is not None


SMOOTH: dict[str, Callable[[torch.Tensor], Any]] = {
    "transcendental": lambda x: F.gelu(x) + F.silu(x).tanh() + F.elu(x),
    "layers": lambda x: F.layer_norm(F.softmax(x, 1), (8,)),
    "mask_of_positions": lambda x: torch.where(torch.arange(8) > 3, x, 0.0),
    "bounds_of_integers": lambda x: x[torch.arange(9).clamp(0, 5)],
    "running_statistics": lambda x: F.batch_norm(x, torch.zeros(8), torch.ones(8), training=False),
    "without_gradients": lambda x: x * x.detach().relu(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "norms": lambda x: x.norm() + torch.linalg.vector_norm(x, 3, 0).sum() + F.normalize(x).sum(),
    "sums_by_index": lambda x: x.new_zeros(3, 8).index_reduce(0, torch.arange(6) % 3, x, "mean"),
    "integers_of_its_shape": lambda x: torch.zeros_like(x, dtype=torch.int64) + x.new_ones(8, dtype=torch.int64) * x,
    "test_for_nan": lambda x: torch.where(x.isnan(), 0.0, x),
    "values_of_an_image": lambda x: F.grid_sample(x.view(1, 1, 6, 8), torch.zeros(1, 2, 2, 2), align_corners=False),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_not_found(name: str) -> None:
    assert amplifier(SMOOTH[name], leaf(6, 8)) is None


def test_half_floats_are_left_alone() -> None:
    assert amplifier(lambda x: x.relu().bfloat16() * 2, leaf(6, 8)) is None


def test_inputs_without_gradients() -> None:
    assert amplifier(F.relu, torch.randn(6, 8)) is None


def test_the_first_one_is_told() -> None:
    assert amplifier(lambda x: x.exp().abs() + x.relu(), leaf(6, 8)) == "abs_1"


def test_what_is_not_known_counts() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    assert amplifier_of(fx.GraphModule({}, graph)) is not None
