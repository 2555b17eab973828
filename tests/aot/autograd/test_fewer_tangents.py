"""A backward from some of the results: its graph comes from the joint graph where that is certain to be what another
trace gives. Gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stator
from stator.aot.trace.retrace import RetraceableProgram


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests of all traces."""
    found: list[Any] = []
    trace = RetraceableProgram.trace

    def counted(self: RetraceableProgram, *request: Any) -> Any:
        found.append(request)
        return trace(self, *request)

    monkeypatch.setattr(RetraceableProgram, "trace", counted)
    return found


def gradients(
    call: Callable[..., Any], pick: Callable[[Any], torch.Tensor], weights: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    given = [weight.detach().clone().requires_grad_() for weight in weights]
    pick(call(*given)).backward()
    return [one.grad for one in given]


def check(
    function: Callable[..., Any], pick: Callable[[Any], torch.Tensor], *weights: torch.Tensor, backend: str = "inductor"
) -> None:
    expected = gradients(function, pick, list(weights))
    found = gradients(stator.compile(function, backend=backend, fullgraph=True), pick, list(weights))
    for got, want in zip(found, expected, strict=True):
        assert (got is None) == (want is None)
        torch.testing.assert_close(got, want, equal_nan=True)


X, TARGETS = torch.randn(6, 8), torch.tensor([0, 3, 1, 2, 3, 0])


def with_loss(w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.tanh(X @ w)
    logits = hidden @ v
    return F.cross_entropy(logits, TARGETS), logits, hidden


def test_backward_of_a_loss_is_not_traced_again(traces: list[Any]) -> None:
    check(with_loss, lambda results: results[0], torch.randn(8, 5), torch.randn(5, 4))
    assert len(traces) == 1


def with_keys(w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys of attention, which lie otherwise than the gradient of their other reader."""
    keys = (X @ w).view(2, 3, 2, 4).transpose(1, 2)
    scores = torch.softmax(X.view(2, 3, 2, 4).transpose(1, 2) @ keys.transpose(2, 3), -1)
    return F.cross_entropy((scores @ keys).transpose(1, 2).reshape(6, 8) @ v, TARGETS), keys


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_gradients_that_lie_otherwise_than_sums(traces: list[Any], backend: str) -> None:
    weights = torch.randn(8, 8), torch.randn(8, 4)
    check(with_keys, lambda results: results[0], *weights, backend=backend)
    assert len(traces) == 1


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_gradients_whose_storage_is_addressed_are_traced_again(traces: list[Any], backend: str) -> None:
    """The gradient of the scattered values is read at addresses that hold other elements in another layout."""

    def function(w: torch.Tensor) -> Any:
        scattered = torch.as_strided_scatter((X @ w) * 1, (X @ w)[:2, :2], (2, 2), (8, 1))
        keys = scattered.view(2, 3, 2, 4).transpose(1, 2)
        return (keys @ X.view(2, 3, 2, 4).permute(0, 2, 3, 1)).sin().sum(), keys

    check(function, lambda results: results[0], torch.randn(8, 8), backend=backend)
    assert len(traces) == 2


def test_symbolic_sizes(traces: list[Any]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        return y.square().sum(), y

    compiled = stator.compile(function, fullgraph=True, dynamic=True)
    for rows in (3, 7):
        x, w = torch.randn(rows, 4), torch.randn(4, 5, requires_grad=True)
        compiled(x, w)[0].backward()
        torch.testing.assert_close(w.grad, 2 * x.t() @ (x @ w).detach())
    assert len(traces) == 1


@pytest.mark.parametrize("picked", [1, 2])
def test_backward_that_reaches_fewer_inputs_is_traced_again(traces: list[Any], picked: int) -> None:
    check(with_loss, lambda results: results[picked].sum(), torch.randn(8, 5), torch.randn(5, 4))
    assert len(traces) == 2


class TwoResults(torch.autograd.Function):
    """Its gradient depends on which of its results have one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor | None, two: torch.Tensor | None) -> Any:
        if one is None or two is None:
            return (one if two is None else two) * 100
        return one + two


def test_formulas_of_several_gradients_are_traced_again(traces: list[Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        one, two = TwoResults.apply(x * 3)
        return one, two.sin().sum()

    check(function, lambda results: results[1], torch.randn(4))
    check(lambda x: TwoResults.apply(x * 3), lambda results: results[1].sum(), torch.randn(4))


def test_a_missing_tangent_is_not_zero(traces: list[Any]) -> None:
    def function(x: torch.Tensor) -> Any:
        root = x.sqrt()
        return root.square().sum(), root * torch.inf, root

    check(function, lambda results: results[0], torch.tensor([0.0, 1.0, 4.0]))
