"""Backwards that are differentiated: again with other tangents, batched, and of programs that keep statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.aot.autograd.traced_graphs import count, graphs_of
from tests.differential import DOUBLE, Tolerance, assert_same
from tests.scenarios import Scenario, check, leaf, scenarios
from torch import nn

import stator
from stator import pipeline
from stator.aot.autograd.autograd_step import CompiledStep


def tangents_that_need_gradients_and_that_do_not(compiled):
    """One compiled function, differentiated with tangents of several layouts."""
    function, found = compiled(lambda x: (x.sin() * x).exp()), []
    for requires_grad, expanded in ((False, True), (True, False), (False, False), (True, True)):
        x = torch.linspace(0.1, 1, 4, dtype=torch.float64, requires_grad=True)
        tangent = torch.arange(1.0, 5, dtype=torch.float64)
        if expanded:
            tangent = tangent[0].expand(4)
        tangent.requires_grad_(requires_grad)
        (gradient,) = torch.autograd.grad(function(x), x, tangent, create_graph=True)
        found += torch.autograd.grad(gradient.square().sum(), [x, tangent] if requires_grad else [x])
    return found


def a_gradient_penalty_through_batch_norm(compiled):
    model, seen = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)), []
    call = compiled(model)
    for seed in range(2):
        x = leaf(5, 4, seed=seed)
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        seen += [gradient.detach(), *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
    return seen, list(model.buffers())


def batched_tangents_that_are_differentiated_again(compiled):
    x, rows = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_(), torch.eye(6).view(6, 2, 3)
    y = compiled(lambda x: x.tanh() * x)(x)
    (found,) = torch.autograd.grad(y, x, rows, is_grads_batched=True, create_graph=True)
    return found.detach(), torch.autograd.grad(found.square().sum(), x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    in_double = scenario is tangents_that_need_gradients_and_that_do_not
    check(scenario, backend, tolerance=DOUBLE if in_double else Tolerance(1e-6, 1e-5))


def test_running_statistics_are_not_kept_for_the_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    compiled, graphs = graphs_of(model)
    result = compiled(torch.randn(5, 4, requires_grad=True))
    result.sum().backward()
    wanted = torch.ops.aten.native_batch_norm_backward.default
    (call,) = [node for node in graphs[-1].graph.nodes if node.target is wanted]
    assert call.args[3:5] == (None, None)


def test_inputs_made_of_each_other_where_a_second_derivative_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient by one of them contains nothing that leads there through the other, and calls no hook twice."""
    monkeypatch.setattr(CompiledStep, "_compile_gradients", lambda *_: None)

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).sin() + y

    def seen(call: Callable[..., Any]) -> list[Any]:
        leaf = torch.linspace(-1, 1, 3, dtype=torch.float64).requires_grad_()
        x, log = leaf * 2, []
        y = x.exp()
        for one in (leaf, x, y):
            one.register_hook(lambda gradient: log.append(gradient.detach()))
        (first,) = torch.autograd.grad(call(x, y).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        return [first.detach(), second, *log]

    compiled = stator.compile(program, backend="aot_eager")
    torch.testing.assert_close(seen(compiled), seen(program), rtol=1e-12, atol=0)


def test_a_defect_of_the_compiler_does_not_end_a_second_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).exp().sum()

    def defect(*arguments: Any) -> Any:
        raise AssertionError("made up")

    x = torch.linspace(0.1, 1, 4, dtype=torch.float64, requires_grad=True)
    result = stator.compile(function, fullgraph=True)(x)
    monkeypatch.setattr(pipeline, "schedule", defect)
    with pytest.warns(RuntimeWarning, match=r"runs eagerly\. AssertionError: made up"):
        (gradient,) = torch.autograd.grad(result, x, create_graph=True)
    (expected,) = torch.autograd.grad(function(x), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), x), torch.autograd.grad(expected.sum(), x))


@pytest.mark.parametrize("sizes", [[3], [3, 5, 6]])
def test_a_backward_that_is_differentiated_reads_what_the_forward_saved(sizes: list[int]) -> None:
    compiled, graphs = graphs_of(lambda x, v, w: ((x @ v).tanh() @ w).tanh() @ w)
    v, w = leaf(4, 4, seed=1), leaf(4, 4, seed=2)
    for size in sizes:
        x = leaf(size, 4)
        results = []
        for call in (compiled, lambda x, v, w: ((x @ v).tanh() @ w).tanh() @ w):
            (gradient,) = torch.autograd.grad(call(x, v, w).sum(), x, create_graph=True)
            results.append([gradient, *torch.autograd.grad(gradient.square().sum(), [x, v, w])])
        assert_same(results[0], results[1], Tolerance(1e-6, 1e-5))
    # three products of the forward, then those of the gradient alone
    assert [count(graph, torch.ops.aten.mm.default) for graph in graphs[:2]] == [3, 3]


def test_saved_values_in_the_layout_of_their_convolution() -> None:
    """Compiled convolutions choose the strides of what they save."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.LeakyReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.Tanh(), torch.nn.Flatten()
    )
    x = torch.randn(2, 3, 12, 12, requires_grad=True)
    results = []
    for call in (stator.compile(model, fullgraph=True), model):
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        results.append([slope, *torch.autograd.grad(slope.square().sum(), [model[0].weight, model[2].weight])])
    assert_same(results[0], results[1], Tolerance(1e-5, 1e-4))


def test_saved_values_that_hooks_hand_back_in_another_layout() -> None:
    def transposed(kept: torch.Tensor) -> torch.Tensor:
        return kept.mT.contiguous().mT if kept.dim() > 1 and not kept.requires_grad else kept

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).tanh() @ w).tanh() @ w

    compiled, x, w = stator.compile(program, fullgraph=True), leaf(3, 4), leaf(4, 4, seed=1)
    for hooks in (False, True, False):
        results = []
        for call in (compiled, program):
            if hooks:
                with torch.autograd.graph.saved_tensors_hooks(lambda one: one, transposed):
                    y = call(x, w)
            else:
                y = call(x, w)
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            results.append([gradient, *torch.autograd.grad(gradient.square().sum(), [x, w])])
        assert_same(results[0], results[1], Tolerance(1e-6, 1e-5))
