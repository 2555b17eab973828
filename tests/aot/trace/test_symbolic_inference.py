"""Functional graphs with symbolic sizes are right for other sizes than those of the example."""

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
from stator.graph.ir.size_bindings import symbols_of_graph
from stator.graph.printer import load_graph, print_graph

Make = Callable[..., Sequence[Any]]
PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {}
SIZES = ((4, 6, 10), (7, 6, 10), (4, 3, 12), (9, 8, 2), (2, 5, 14), (16, 16, 16))


def program(make: Make) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, make
        return function

    return register


def matrix(a: int, b: int, c: int) -> list[Any]:
    return [torch.randn(a, b)]


def cube(a: int, b: int, c: int) -> list[Any]:
    return [torch.randn(a, b, c)]


@program(lambda a, b, c: [torch.randn(a, b), torch.randn(a, b), torch.randn(b)])
def elementwise(x, y, z):
    return torch.sin(x) * y + z, (x - 2 * y).relu()


@program(cube)
def reshapes(x):
    return x.reshape(-1, x.size(2)) * 2, x.flatten(1).sum(1), x.view(x.size(0), -1).t().exp(), x.permute(2, 0, 1) + 1


@program(cube)
def slices(x):
    return x[:, 1:] * 2, x[..., : x.size(2) // 2] + 1, x[:, -1].exp(), x[:, ::2].sum()


@program(lambda a, b, c: [torch.randn(a, b), torch.randn(c, b)])
def joined(x, y):
    return torch.cat((x, y)).exp(), torch.stack((x, x * 2), 1), torch.cat((x, x[:, :1]), 1)


@program(lambda a, b, c: [torch.randn(a, b), torch.randn(b, c), torch.randn(c)])
def products(x, w, bias):
    return x @ w, F.linear(x, w.t(), bias).relu(), torch.addmm(bias, x, w)


@program(lambda a, b, c: [torch.randn(a, b, c), torch.randn(8, c), torch.randn(8)])
def folded_product(x, w, bias):
    return F.linear(x, w, bias), x @ w.t()


@program(lambda a, b, c: [torch.randn(a, b, c), torch.randn(a, c, b)])
def batched_product(x, y):
    return torch.bmm(x, y).softmax(-1), x @ y


@program(lambda a, b, c: [torch.randn(a, 2, b, 4) for _ in range(3)])
def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    return scores.softmax(-1) @ v, F.scaled_dot_product_attention(q, k, v, is_causal=True)


@program(lambda a, b, c: [torch.randn(a, b, 8), torch.randn(8), torch.randn(8)])
def norms(x, weight, bias):
    return F.layer_norm(x, (8,), weight, bias), F.rms_norm(x, (8,), weight)


@program(lambda a, b, c: [torch.randint(0, 11, (a, b)), torch.randn(11, 4)])
def lookups(ids, table):
    return F.embedding(ids, table).mean(1), F.one_hot(ids, 11).sum(0)


@program(lambda a, b, c: [torch.randn(a, 11), torch.randint(0, 11, (a,))])
def losses(x, target):
    return F.cross_entropy(x, target), F.nll_loss(x.log_softmax(1), target, reduction="sum"), F.mse_loss(x, x * 2)


@program(lambda a, b, c: [torch.randn(a, 3, b + 4, c + 4), torch.randn(5, 3, 3, 3), torch.randn(5)])
def convolution(x, weight, bias):
    y = F.conv2d(x, weight, bias, padding=1)
    return F.max_pool2d(y.relu(), 2), F.adaptive_avg_pool2d(y, 1).flatten(1), F.avg_pool2d(y, 2)


@program(lambda a, b, c: [torch.randn(a, 3, b), torch.zeros(3), torch.ones(3)])
def batch_norm(x, mean, var):
    return F.batch_norm(x, mean, var, training=True), F.batch_norm(x, mean, var)


@program(cube)
def scans(x):
    return x.cumsum(1), x.cumprod(0), torch.logcumsumexp(x, 2), x.sort(-1)[0], x.argmax(1), x.topk(2, -1)[0]


@program(cube)
def reductions(x):
    return x.mean(), x.var(1), x.amax((0, 2)), x.norm(), x.std(-1, keepdim=True), x.logsumexp(0), x.softmax(1)


@program(cube)
def sizes_as_numbers(x):
    return x * x.size(0), x / x.size(1), x + x.shape[2] ** 0.5, x.sum(0) / x.numel(), x.size(1) * 2


@program(lambda a, b, c: [torch.randn(a, b), torch.randint(0, 2, (b,))])
def indexing(x, places):
    return x[:, places], x[places % 2], x.index_select(1, places), x.gather(0, places[None]), x.take(places)


@program(lambda a, b, c: [torch.randn(a, b)])
def made(x):
    rows, columns = x.size(0), x.size(1)
    triangle = x.new_ones((rows, columns)).tril()
    positions = torch.arange(columns)
    return triangle * x, x + positions, torch.zeros((rows, 3)), torch.full((columns,), 2.0) + x, torch.eye(rows)


@program(lambda a, b, c: [torch.randn(a, b)])
def padded(x):
    return (
        F.pad(x, (1, 2)),
        F.pad(x, (0, x.size(0))),
        x.repeat(2, 3),
        x.expand(3, x.size(0), -1),
        x.roll(1, 0),
        x.flip(1),
    )


@program(lambda a, b, c: [torch.randn(a, b)])
def masks(x):
    mask = x > 0
    return x.masked_fill(mask, 2.0), torch.where(mask, x, -x), x.clamp(min=0), x.tril(), x.triu(1), mask.any(1)


@program(lambda a, b, c: [torch.randn(a, b), torch.randn(a, b)])
def written(x, y):
    x.add_(y)
    y[:, 1:].copy_(x[:, :-1])
    y[0].mul_(2)
    return x.sum(), y * 2


@program(lambda a, b, c: [torch.randn(a, b, c)])
def aliases(x):
    y = x * 2
    return y, y.view(-1), y[:, 1], x.transpose(0, 1), x[1:], y.permute(1, 2, 0)


@program(lambda a, b, c: [torch.randn(a, b)])
def views_of_written(x):
    flat = x.view(-1)
    flat[: x.size(1)].fill_(3.0)
    x.t()[1].mul_(2)
    return flat[2:], x.unfold(0, 2, 1).sum(-1)


@program(lambda a, b, c: [torch.randn(a, b), a])
def numbers(x, n):
    return x * n, x.sum(1) + n, torch.zeros((n, 2)), torch.arange(n) + x[:, 0], n * 2


@program(lambda a, b, c: [torch.randn(a, b, c)])
def loop(x):
    total = torch.zeros_like(x[0])
    for step in range(3):
        total = torch.tanh(total + x[step % 2]) @ torch.eye(total.size(1))
    return (total,)


@program(lambda a, b, c: [torch.randn(a, 2 * b), torch.randn(b)])
def gated(x, weight):
    first, second = x.chunk(2, -1)
    return (first * second.sigmoid() * weight,)


@program(lambda a, b, c: [torch.randn(a, b, 12)])
def heads(x):
    q, k, v = x.split(4, -1)
    return (q * k).view(x.size(0), x.size(1), 2, 2).transpose(1, 2).reshape(x.size(0), 2, -1), v.contiguous()


@program(lambda a, b, c: [torch.randn(b, a).t()])
def transposed_input(x):
    return x * 2, x.contiguous(), x.reshape(-1), x.clone(), x[1:] + 1


@program(lambda a, b, c: [torch.randn(a, b, c).to(torch.float16)])
def casts(x):
    return x.float().sum(-1), x.to(torch.float64), x.bool(), (x > 0).long().cumsum(0)


@program(lambda a, b, c: [torch.randn(2, 3, 2 * a, 2 * b)])
def resized(x):
    return F.pixel_unshuffle(x, 2), F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)


@program(lambda a, b, c: [torch.randn(a, 2, 3), torch.randn(a, 3, 4), torch.randn(a, 3, b, c)])
def affine_grids(planar, spatial, image):
    size = [image.size(dim) for dim in range(4)]
    grids = [F.affine_grid(planar, size, align_corners=corners) for corners in (False, True)]
    sampled = F.grid_sample(image, grids[0], align_corners=False)
    return *grids, F.affine_grid(spatial, [*size, 5], align_corners=False), sampled


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_of_symbolic_sizes_give_the_same_as_eager(name: str) -> None:
    function, make = PROGRAMS[name]
    graph, compiled, functional = compiled_at(function, make(*SIZES[0]))
    assert symbols_of_graph(functional.graph)
    facts = str(graph.environment)
    tried = 0
    for sizes in SIZES:
        torch.manual_seed(1)
        inputs = make(*sizes)
        if not graph.holds(inputs):
            continue
        tried += sizes != SIZES[0]
        torch.manual_seed(1)
        expected_inputs = make(*sizes)
        expected = function(*expected_inputs)
        found = compiled(*inputs)
        assert len(found) == len(expected)
        for own, other in zip([*found, *inputs], [*expected, *expected_inputs], strict=True):
            assert_same(own, other)
    assert str(graph.environment) == facts  # nothing is relied on that no guard could check
    assert tried >= 2, facts


@pytest.mark.parametrize("name", ("reshapes", "sizes_as_numbers", "numbers", "padded", "made"))
def test_graphs_of_symbolic_sizes_print_as_python(name: str) -> None:
    function, make = PROGRAMS[name]
    graph, _, functional = compiled_at(function, make(*SIZES[0]))
    printed = load_graph(print_graph(functional), dict(functional.named_buffers()))
    for sizes in SIZES:
        inputs = sorted(make(*sizes), key=lambda value: type(value) is int)
        if graph.holds(inputs):
            expected = aot.run_eagerly(functional, inputs)(*inputs)
            for own, other in zip(printed(*inputs), expected, strict=True):
                assert_same(own, other)


def compiled_at(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[SymbolicGraph, Any, fx.GraphModule]:
    """The graph, its compiled callable, and the verified functional graph."""
    graph = SymbolicGraph(function, inputs)
    graphs: list[fx.GraphModule] = []

    def observed(gm: fx.GraphModule, examples: Any) -> Any:
        graphs.append(gm)
        verifier.verify(gm)
        return aot.run_eagerly(gm, examples)

    compiled = aot.compile_inference(graph.module, inputs, observed, keep=aot.keep_all)
    return graph, compiled, graphs[0]


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if not isinstance(found, torch.Tensor):
        assert found == expected
        return
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, check_stride=True)
