"""Gradients of graphs with symbolic sizes are right for other sizes than those of the example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from symbolic_graphs import SymbolicGraph
from torch import fx

from stator import aot
from stator.graph import verifier

Make = Callable[..., Sequence[Any]]
PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {}
SIZES = ((4, 6, 10), (7, 6, 10), (4, 3, 12), (9, 8, 2), (2, 5, 14), (16, 16, 16))


def program(make: Make) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, make
        return function

    return register


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


@program(lambda a, b, c: [leaf(a, b), leaf(b)])
def elementwise(x, y):
    return torch.sin(x) * y, (x - 2 * y).sigmoid().sum(0)


@program(lambda a, b, c: [leaf(a, b, c)])
def reshapes(x):
    return x.reshape(-1, x.size(2)).exp(), x.flatten(1).sum(1), x.permute(2, 0, 1).tanh()


@program(lambda a, b, c: [leaf(a, b, c)])
def slices(x):
    return x[:, 1:].exp(), x[..., : x.size(2) // 2].sin(), x[:, -1].exp(), x[:, ::2].cos().sum()


@program(lambda a, b, c: [leaf(a, b), leaf(c, b)])
def joined(x, y):
    return torch.cat((x, y)).exp(), torch.stack((x, x.sin()), 1).tanh()


@program(lambda a, b, c: [leaf(a, b), leaf(b, c), leaf(c)])
def products(x, w, bias):
    return F.linear(x, w.t(), bias).relu(), torch.addmm(bias, x, w).tanh()


@program(lambda a, b, c: [leaf(a, b, c), leaf(8, c), leaf(8)])
def folded_product(x, w, bias):
    return F.linear(x, w, bias).tanh(), (x @ w.t()).exp()


@program(lambda a, b, c: [leaf(a, 2, b, 4) for _ in range(3)])
def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    return scores.softmax(-1) @ v, F.scaled_dot_product_attention(q, k, v, is_causal=True)


@program(lambda a, b, c: [leaf(a, b, 8), leaf(8), leaf(8)])
def norms(x, weight, bias):
    return F.layer_norm(x, (8,), weight, bias).sin(), F.rms_norm(x, (8,), weight).sin()


@program(lambda a, b, c: [torch.randint(0, 11, (a, b)), leaf(11, 4)])
def lookups(ids, table):
    return (F.embedding(ids, table).mean(1).exp(),)


@program(lambda a, b, c: [leaf(a, 11), torch.randint(0, 11, (a,))])
def losses(x, target):
    return F.cross_entropy(x, target), F.mse_loss(x, x.sin()), x.log_softmax(1).mean()


@program(lambda a, b, c: [leaf(a, 3, b + 4, c + 4), leaf(5, 3, 3, 3), leaf(5)])
def convolution(x, weight, bias):
    y = F.conv2d(x, weight, bias, padding=1)
    return F.max_pool2d(y.relu(), 2), F.adaptive_avg_pool2d(y, 1).flatten(1), F.avg_pool2d(y, 2)


@program(lambda a, b, c: [leaf(a, 3, b), torch.zeros(3), torch.ones(3), leaf(3), leaf(3)])
def batch_norm(x, mean, var, weight, bias):
    return (F.batch_norm(x, mean, var, weight, bias, training=True).sin(),)


@program(lambda a, b, c: [leaf(a, b, c)])
def scans(x):
    return x.cumsum(1).sin(), x.logcumsumexp(2), x.sort(-1)[0].exp(), x.topk(2, -1)[0].exp()


@program(lambda a, b, c: [leaf(a, b, c)])
def reductions(x):
    return x.mean(), x.var(1), x.amax((0, 2)), x.norm(), x.std(-1, keepdim=True), x.logsumexp(0), x.softmax(1).square()


@program(lambda a, b, c: [leaf(a, b)])
def sizes_as_numbers(x):
    return x.sin() * x.size(0), x.exp() / x.numel(), (x * x).sum(0) / x.size(0)


@program(lambda a, b, c: [leaf(a, b), torch.randint(0, 2, (b,))])
def indexing(x, places):
    return x[:, places].exp(), x.index_select(1, places).sin(), x.gather(0, places[None]).tanh()


@program(lambda a, b, c: [leaf(a, b)])
def padded(x):
    return F.pad(x, (1, 2)).exp(), x.repeat(2, 3).sin(), x.expand(3, x.size(0), -1).exp(), x.roll(1, 0).flip(1).sin()


@program(lambda a, b, c: [leaf(a, b), torch.randn(a, b)])
def written(x, y):
    z = x * y.sin()
    z.mul_(x)
    z[:, 1:].copy_(x[:, :-1].sin())
    y.add_(z)
    return (z.exp(),)


@program(lambda a, b, c: [leaf(a, b, c)])
def aliases(x):
    y = x.exp()
    return y, y.view(-1), y[:, 1], x.transpose(0, 1), y[1:].sin()


@program(lambda a, b, c: [leaf(a, b), c])
def numbers(x, n):
    return x.sin() * n, x.sum(1).expand(n, x.size(0)).exp(), x.exp().sum() / n


@program(lambda a, b, c: [leaf(a, b), leaf(c), c])
def unbound(x, y, n):
    return (x.sum() * torch.ones((n, 3)).sum() + y.sum().exp(),)


@program(lambda a, b, c: [leaf(a, 2 * b), leaf(b)])
def gated(x, weight):
    first, second = x.chunk(2, -1)
    return (first * second.sigmoid() * weight,)


@program(lambda a, b, c: [leaf(a, b, 12)])
def heads(x):
    q, k, v = x.split(4, -1)
    return (q * k).view(x.size(0), x.size(1), 2, 2).transpose(1, 2).reshape(x.size(0), 2, -1), v.exp()


@program(lambda a, b, c: [leaf(a, b), leaf(b)])
def different_leaves(x, y):
    return x.sin(), y.exp(), (x * y).sum()


@program(lambda a, b, c: [leaf(a, b)])
def dropped(x):
    return F.dropout(x, 0.5).sin(), F.dropout(x.exp(), 0.1)


def run(function: Callable[..., Any], inputs: Sequence[Any], wanted: Sequence[int] | None = None) -> list[Any]:
    """Results and gradients of the results at `wanted` (None: all), and what was written."""
    torch.manual_seed(7)
    results = list(function(*inputs))
    chosen = [one for at, one in enumerate(results) if wanted is None or at in wanted]
    chosen = [one for one in chosen if one.requires_grad]
    torch.autograd.backward(chosen, [torch.linspace(-1, 2, one.numel()).view(one.shape) for one in chosen])
    return [*results, *[one.grad if isinstance(one, torch.Tensor) and one.is_leaf else one for one in inputs]]


def compiled_at(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[SymbolicGraph, Any, list[fx.GraphModule]]:
    graph = SymbolicGraph(function, inputs)
    graphs: list[fx.GraphModule] = []

    def observed(gm: fx.GraphModule, examples: Any) -> Any:
        graphs.append(gm)
        verifier.verify(gm)
        return aot.run_eagerly(gm, examples)

    return graph, aot.compile_training(graph.module, inputs, observed, keep=aot.keep_all), graphs


def made(make: Make, sizes: Sequence[int]) -> Sequence[Any]:
    torch.manual_seed(1)
    return make(*sizes)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager_for_other_sizes(name: str) -> None:
    function, make = PROGRAMS[name]
    graph, compiled, graphs = compiled_at(function, made(make, SIZES[0]))
    facts = str(graph.environment)
    tried = 0
    for sizes in SIZES:
        inputs = made(make, sizes)
        if graph.holds(inputs):
            tried += sizes != SIZES[0]
            for own, other in zip(run(compiled, inputs), run(function, made(make, sizes)), strict=True):
                assert_same(own, other)
    assert str(graph.environment) == facts
    assert len(graphs) == 2  # one forward, one backward
    assert tried >= 2, facts


@pytest.mark.parametrize("name", ("elementwise", "different_leaves", "numbers", "reductions"))
def test_other_tangents_have_backwards_for_all_sizes(name: str) -> None:
    function, make = PROGRAMS[name]
    graph, compiled, graphs = compiled_at(function, made(make, SIZES[0]))
    for sizes in SIZES:
        if graph.holds(made(make, sizes)):
            for wanted in ((0,), (1,)):
                expected = run(function, made(make, sizes), wanted)
                for own, other in zip(run(compiled, made(make, sizes), wanted), expected, strict=True):
                    assert_same(own, other)
    assert len(graphs) == 3  # one forward, two backwards


@pytest.mark.parametrize("name", ("elementwise", "numbers", "norms"))
def test_second_derivatives_are_those_of_eager_for_other_sizes(name: str) -> None:
    function, make = PROGRAMS[name]
    graph, compiled, _ = compiled_at(function, made(make, SIZES[0]))

    def second(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
        leaves = [one for one in inputs if isinstance(one, torch.Tensor)]
        total = sum(one.sum() for one in function(*inputs))
        first = torch.autograd.grad(total, leaves, create_graph=True)
        sum(one.square().sum() for one in first).backward()
        return [*first, *[one.grad for one in leaves]]

    for sizes in SIZES[:3]:
        if graph.holds(made(make, sizes)):
            expected = second(function, made(make, sizes))
            for own, other in zip(second(compiled, made(make, sizes)), expected, strict=True):
                assert_same(own, other)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if not isinstance(found, torch.Tensor):
        assert found == expected
        return
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, check_stride=True)
