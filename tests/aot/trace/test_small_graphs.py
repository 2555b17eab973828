"""Training graphs that are too small to gain run as they are: one operator, or few whose calls cost little."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator
from stator.aot import training
from stator.aot.partition import call_costs
from stator.aot.runtime.eager import keep_all
from stator.aot.trace.joint import trace_joint
from stator.base import counters


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum()


def shifted_thrice(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) * 2 - 3


def pooled(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.max_pool2d(x.view(4, -1, 16), 2)


def sums_of_rows(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1, keepdim=True)


def product(x: torch.Tensor) -> torch.Tensor:
    table = x.view(2, -1)
    return table @ table.t()


LSTM = torch.nn.LSTM(2, 3)


GRU = torch.nn.GRU(2, 3)


def by_steps(x: torch.Tensor) -> torch.Tensor:
    return GRU(x.view(-1, 2, 2))[0]  # type: ignore[no-any-return]


def recurrent(x: torch.Tensor) -> torch.Tensor:
    return LSTM(x.view(-1, 2, 2))[0]  # type: ignore[no-any-return]


FACTOR = torch.ones(100, 2)


def joined_products(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.view(100, -1) @ FACTOR, FACTOR])


def joined_sums(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x + 1, x])


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(
    ("function", "size", "left"),
    [
        (shifted, 4, 1),
        (shifted, 10000, 1),
        (squares, 4, 1),
        (squares, 10000, 0),  # more data
        (shifted_thrice, 4, 0),  # an operator of a number costs more
        (product, 4, 1),
        (product, 10000, 1),  # nothing to fuse
        (joined_products, 10000, 1),  # nor with the copy
        (joined_sums, 10000, 0),
        (pooled, 1 << 10, 1),
        (pooled, 1 << 17, 0),  # eager's loops are slower, which little data does not repay
        (shifted, 1 << 17, 1),
        (sums_of_rows, 1 << 17, 1),  # the gradient is a view
        (recurrent, 400, 1),  # the first states are filled with zeros, which fuses with nothing
    ],
)
def test_a_small_graph_is_left_to_eager(
    function: Callable[[torch.Tensor], torch.Tensor], size: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_costs, "LITTLE_DATA", 1 << 15)
    monkeypatch.setattr(call_costs, "MUCH_DATA", 1 << 18)
    stator.reset()
    before = counters.counts["left_to_eager"]
    expected, x = (torch.arange(float(size), requires_grad=True) for _ in range(2))
    result = stator.compile(function)(x)
    assert counters.counts["left_to_eager"] - before == left
    assert torch.equal(result, function(expected))
    result.sum().backward()
    function(expected).sum().backward()
    assert torch.equal(x.grad, expected.grad)  # type: ignore[arg-type]


def test_layers_that_eager_computes_step_by_step_are_compiled() -> None:
    stator.reset()
    before = counters.counts["left_to_eager"]
    expected, x = (torch.arange(400.0, requires_grad=True) for _ in range(2))
    stator.compile(by_steps)(x).sum().backward()
    by_steps(expected).sum().backward()
    assert counters.counts["left_to_eager"] == before
    torch.testing.assert_close(x.grad, expected.grad)


def results_in_a_chain(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = (x + 1).sin()
    return first, (first * 2).exp()


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(("function", "left"), [(results_in_a_chain, 1), (lambda x: results_in_a_chain(x)[1], 0)])
def test_autograd_nodes_of_results_count(
    function: Callable[..., object], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_costs, "LITTLE_DATA", 1 << 15)
    stator.reset()
    before = counters.counts["left_to_eager"]
    stator.compile(function)(torch.arange(5.0, requires_grad=True))
    assert counters.counts["left_to_eager"] - before == left


def test_every_node_of_a_result_is_counted() -> None:
    x, y = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    independent = trace_joint(lambda x: (x.sin(), x.cos()), (x,), keep=keep_all)
    chain = trace_joint(results_in_a_chain, (x,), keep=keep_all)
    grouped = trace_joint(lambda x, y: (x.sin(), (x + y).tanh()), (x, y), keep=keep_all)
    assert [joint.link_nodes() for joint in (independent, chain, grouped)] == [0, 1, 2]


@pytest.mark.fixed_sizes
def test_only_operators_on_the_way_to_gradients_count_as_autograd_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition on data has no part in a backward."""
    seen: list[call_costs.Calls] = []
    count_calls = call_costs.count_calls
    monkeypatch.setattr(call_costs, "LITTLE_DATA", 1 << 15)
    monkeypatch.setattr(training, "count_calls", lambda *given: seen.append(count_calls(*given)) or seen[-1])

    def with_condition(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * x).exp()
        return y, (y - x).sum() > 4

    stator.compile(with_condition)(torch.ones(4, requires_grad=True))
    assert [calls.operators_backward["node"] for calls in seen] == [2]
