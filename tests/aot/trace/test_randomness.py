"""The rewrite of random operators: replaced calls keep distribution and layout; others keep eager's numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import fx

from stator.aot import functionalize_random
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.ir.schema import is_random_call
from stator.graph.printer import load_graph, print_graph
from stator.graph.tracing.tracer import trace
from stator.graph.verifier import verify
from stator.inductor.lower import can_lower
from stator.prims.operators import random

COUNT = 20_000
UNLIKELY = 1e-4
Function = Callable[[torch.Tensor], torch.Tensor]


def traced(function: Function, *inputs: torch.Tensor) -> fx.GraphModule:
    return trace(function, inputs, keep=can_lower).graph


def rewritten(function: Function, *inputs: torch.Tensor) -> fx.GraphModule:
    graph = functionalize_random(traced(function, *inputs))
    verify(graph)
    return graph


def calls(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def drawing(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in calls(graph) if is_random_call(node.target, node.args, node.kwargs)]


def streams(graph: fx.GraphModule) -> list[object]:
    return [node.args[1] for node in calls(graph) if node.target in random.PURE]


REPLACED: dict[str, Function] = {
    "rand": lambda x: torch.rand(COUNT),
    "rand of float64": lambda x: torch.rand(COUNT, dtype=torch.float64),
    "rand of bfloat16": lambda x: torch.rand(COUNT, dtype=torch.bfloat16),
    "randn": lambda x: torch.randn(COUNT),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like of float16": lambda x: torch.randn_like(x, dtype=torch.float16),
    "randint": lambda x: torch.randint(10, (COUNT,)),
    "randint from": lambda x: torch.randint(-5, 300, (COUNT,), dtype=torch.int16),
    "randint_like": lambda x: torch.randint_like(x, 7),
    "randint_like from": lambda x: torch.randint_like(x, 2, 9),
    "random_": lambda x: torch.empty(COUNT).random_(),
    "random_ to": lambda x: torch.empty(COUNT, dtype=torch.int64).random_(12),
    "random_ from": lambda x: torch.empty(COUNT, dtype=torch.int64).random_(-3, 12),
    "random_ of bytes": lambda x: torch.empty(COUNT, dtype=torch.uint8).random_(),
    "bernoulli of probabilities": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli": lambda x: torch.bernoulli(x, 0.2),
    "bernoulli_": lambda x: torch.empty(COUNT, dtype=torch.bool).bernoulli_(0.7),
    "bernoulli_ of probabilities": lambda x: torch.empty(COUNT).bernoulli_(x.sigmoid().double()),
    "uniform_": lambda x: torch.empty(COUNT).uniform_(-1, 2),
    "normal_": lambda x: torch.empty(COUNT).normal_(1, 3),
    "exponential_": lambda x: torch.empty(COUNT).exponential_(2.0),
    "exponential_ of float64": lambda x: torch.empty(COUNT, dtype=torch.float64).exponential_(),
    "geometric_": lambda x: torch.empty(COUNT).geometric_(0.3),
    "geometric_ of integers": lambda x: torch.empty(COUNT, dtype=torch.int64).geometric_(0.05),
    "cauchy_": lambda x: torch.empty(COUNT).cauchy_(1.0, 2.0),
    "log_normal_": lambda x: torch.empty(COUNT).log_normal_(0.5, 0.4),
    "normal of means": lambda x: torch.normal(x, 2.0),
    "normal of deviations": lambda x: torch.normal(1.0, x.abs()),
    "normal of both": lambda x: torch.normal(x, x.abs()),
    "normal of numbers": lambda x: torch.normal(1.0, 2.0, (COUNT,)),
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout in place": lambda x: F.dropout(x + 1, 0.3, inplace=True),
    "native_dropout": lambda x: torch.ops.aten.native_dropout(x, 0.3, True)[0],
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "dropout of channels": lambda x: F.dropout2d(x.view(1, -1, 2, 2), 0.5),
    "alpha dropout of channels": lambda x: F.feature_alpha_dropout(x.view(1, -1, 2, 2), 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu in place": lambda x: F.rrelu(x + 0, 0.2, 0.9, training=True, inplace=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x.view(-1, 4)),
    "attention with dropout": lambda x: F.scaled_dot_product_attention(
        *[x.view(5, 4, 125, 8) for _ in range(3)], dropout_p=0.4
    ),
}


@pytest.mark.parametrize("name", REPLACED)
def test_replacements_have_the_distribution_and_layout_of_eager(name: str) -> None:
    torch.manual_seed(1)
    x, function = torch.randn(COUNT), REPLACED[name]
    graph = rewritten(function, x)
    assert drawing(graph) == ["stator.seed.default"]
    (got,), expected = graph(x), function(x)
    assert (got.shape, got.dtype, got.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert stats.ks_2samp(got.double().flatten().numpy(), expected.double().flatten().numpy()).pvalue > UNLIKELY
    assert not torch.equal(graph(x)[0], got)


LEFT: dict[str, Function] = {
    "multinomial": lambda x: torch.multinomial(x.abs(), 3),
    "randperm": lambda x: torch.randperm(10),
    "poisson": lambda x: torch.poisson(x.abs()),
    "gamma": lambda x: torch._standard_gamma(x.abs()),
    "random_ over all int64": lambda x: torch.empty(3, dtype=torch.int64).random_(),
    "randn of complex": lambda x: torch.randn(4, dtype=torch.complex64),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_has_no_replacement_gives_the_numbers_of_eager(name: str) -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    graph = rewritten(LEFT[name], x)
    torch.manual_seed(5)
    got = graph(x)[0]
    torch.manual_seed(5)
    assert torch.equal(got, LEFT[name](x))


REFUSED: dict[str, Function] = {
    "bernoulli above 1": lambda x: torch.bernoulli(x, 1.5),
    "uniform_ from above to": lambda x: torch.empty(3).uniform_(2, 1),
    "normal_ of a negative deviation": lambda x: torch.empty(3).normal_(0, -1),
    "exponential_ of a negative rate": lambda x: torch.empty(3).exponential_(-1.0),
    "geometric_ of 1.5": lambda x: torch.empty(3).geometric_(1.5),
    "randint over nothing": lambda x: torch.randint(5, 5, (3,)),
    "randint beyond the dtype": lambda x: torch.randint(0, 300, (3,), dtype=torch.uint8),
    "probabilities above 1": lambda x: torch.bernoulli(x + 2),
    "probabilities that are not numbers": lambda x: torch.bernoulli(x * float("nan")),
    "negative deviations": lambda x: torch.normal(x, -x.abs() - 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    x = torch.rand(10)
    with pytest.raises(RuntimeError):
        REFUSED[name](x)
    graph = rewritten(REFUSED[name], x)
    with pytest.raises(RuntimeError):
        graph(x)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_at_both_ends(p: float) -> None:
    x = torch.randn(1000)
    for function in (lambda x: F.dropout(x * 2, p), lambda x: torch.ops.aten.native_dropout(x, p, True)[0]):
        assert torch.equal(rewritten(function, x)(x)[0], function(x))


def test_dropout_outside_of_training_draws_nothing() -> None:
    graph = rewritten(lambda x: F.dropout(x, 0.5, training=False) + 1, torch.randn(5))
    assert drawing(graph) == []


def test_numbers_that_nothing_reads_are_not_drawn() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand([])
        return x + 1

    assert drawing(traced(function, torch.randn(5))) == ["aten.rand.default"]
    assert drawing(rewritten(function, torch.randn(5))) == []


def test_every_operator_has_a_stream_and_equal_graphs_have_equal_ones() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(5)

    graphs = [rewritten(function, torch.randn(5)) for _ in range(2)]
    assert streams(graphs[0]) == streams(graphs[1]) == [0, 1, 2]
    assert drawing(graphs[0]) == ["stator.seed.default"]


def test_two_operators_give_different_numbers() -> None:
    first, second = rewritten(lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.randn(100))(torch.randn(100))
    assert (first == second).sum() == 0


def test_numbers_follow_manual_seed() -> None:
    graph, x = rewritten(lambda x: F.dropout(x, 0.5), torch.randn(100)), torch.randn(100)
    torch.manual_seed(2)
    first = [graph(x)[0] for _ in range(3)]
    torch.manual_seed(2)
    assert all(torch.equal(graph(x)[0], one) for one in first)


@pytest.mark.parametrize("format", [torch.channels_last, torch.contiguous_format])
def test_memory_formats_are_kept(format: torch.memory_format) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=format)
    for function in (torch.rand_like, lambda x: F.dropout(x, 0.5), lambda x: F.rrelu(x, training=True)):
        assert rewritten(function, x)(x)[0].stride() == function(x).stride()


def test_numbers_are_dealt_out_in_the_order_of_memory() -> None:
    x = torch.randn(2, 3, 4, 5)
    last = x.to(memory_format=torch.channels_last)
    numbers = []
    for given in (x.permute(0, 2, 3, 1).contiguous(), last):
        graph = rewritten(torch.rand_like, given)
        torch.manual_seed(0)
        numbers.append(graph(given)[0])
    assert torch.equal(numbers[0].permute(0, 3, 1, 2), numbers[1])


def test_new_nodes_take_over_what_was_noted_on_the_old_one() -> None:
    graph = traced(lambda x: F.dropout(x, 0.5) * 2, torch.randn(5))
    (old,) = [node for node in calls(graph) if "bernoulli" in str(node.target)]
    old.meta["checkpoint"], name = 3, old.name
    functionalize_random(graph)
    made = [node for node in calls(graph) if node.name.startswith(f"{name}_by_")]
    assert made and all(node.meta["checkpoint"] == 3 for node in made)
    (seed,) = [node for node in calls(graph) if node.target is random.seed]
    assert "checkpoint" not in seed.meta


def test_names_of_new_nodes_do_not_depend_on_what_comes_later() -> None:
    def short(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).uniform_(1, 3)

    def long(x: torch.Tensor) -> torch.Tensor:
        return (short(x) * 2 + 1) * 3 + 4

    names = [[node.name for node in calls(rewritten(function, torch.randn(5)))][:4] for function in (short, long)]
    assert names[0] == names[1]


def test_the_printed_graph_runs_on_its_own() -> None:
    x = torch.randn(5)
    graph = rewritten(lambda x: F.dropout(x, 0.5), x)
    text = print_graph(graph)
    assert "import stator.prims\n" in text
    torch.manual_seed(0)
    want = graph(x)[0]
    torch.manual_seed(0)
    assert torch.equal(load_graph(text)(x)[0], want)


def test_graphs_without_random_operators_are_left_alone() -> None:
    graph = traced(lambda x: x + 1, torch.randn(5))
    before = str(graph.graph)
    assert functionalize_random(graph) is graph and str(graph.graph) == before


def test_random_results_are_never_known_while_tracing() -> None:
    tracer = FunctionalTracer(can_lower)
    with tracer:
        values = [torch.rand(3), torch.tensor(0.5).bernoulli(), torch.full((2,), 0.5).bernoulli_(), torch.randperm(4)]
        values += [torch.randn(()), torch.zeros(3).uniform_(), torch.ones(4).multinomial(2), torch.randint(2, 3, (2,))]
    assert [value.known_value() for value in values] == [None] * len(values)


def test_equal_random_calls_are_not_merged() -> None:
    graph = traced(lambda x: x + torch.rand(5) - torch.rand(5), torch.randn(5))
    assert drawing(graph) == ["aten.rand.default"] * 2


def test_unused_random_calls_still_move_the_generator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        return torch.rand(5)

    graph = traced(function, torch.randn(5))
    torch.manual_seed(0)
    got = graph(torch.randn(5, generator=torch.Generator().manual_seed(1)))[0]
    torch.manual_seed(0)
    assert torch.equal(got, function(torch.zeros(5)))


def test_attention_without_dropout_draws_nothing() -> None:
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    q = torch.randn(1, 1, 2, 4)
    assert (
        not is_random_call(flash, (q, q, q), {})
        and is_random_call(flash, (q, q, q, 0.1), {})
        and is_random_call(flash, (q, q, q), {"dropout_p": 0.5})
    )
