"""Backwards that are asked for some of the gradients compute no others."""

from __future__ import annotations

import pytest
import torch
from tests.aot.autograd.traced_graphs import count, graphs_of
from tests.differential import Tolerance, assert_same
from tests.scenarios import Scenario, check, gradients, leaf, scenarios

from stator.aot.autograd import autograd_step


def by_each_input_in_turn(compiled):
    f = compiled(lambda a, b, c: ((a * b).tanh() @ c, (b + c).exp()))
    inputs = [leaf(4, 4, seed=seed) for seed in range(3)]
    found = []
    for chosen in (0, 1, 2, 0, slice(0, 2), slice(1, 3), slice(0, 3), 2):
        results = f(*inputs)
        asked = inputs[chosen] if isinstance(chosen, slice) else [inputs[chosen]]
        found += torch.autograd.grad(sum(one.sum() for one in results), asked, allow_unused=True)
        found += torch.autograd.grad(f(*inputs)[1].sum(), asked, allow_unused=True)
    return found


def several_times_from_one_call(compiled):
    x, w = leaf(3, 4), leaf(4, 5, seed=1)
    loss = compiled(lambda x, w: (x @ w).tanh().square())(x, w).sum()
    found = [*torch.autograd.grad(loss, x, retain_graph=True), *torch.autograd.grad(loss, w, retain_graph=True)]
    loss.backward(inputs=[w], retain_graph=True)
    found += [x.grad is None, w.grad.clone()]
    loss.backward()
    return found, x.grad, w.grad


def by_tensors_that_are_no_leaves(compiled):
    x, w = leaf(3, 4), leaf(4, 5, seed=1)
    y = x * 2
    z = compiled(lambda y, w: (y @ w).tanh())(y, w)
    return torch.autograd.grad(z.sum(), [y], retain_graph=True), torch.autograd.grad(z.sum(), [x, w])


def inputs_that_nothing_depends_on(compiled):
    """Autograd has no edges to them."""
    unused, x, w = leaf(2, seed=2), leaf(3, 4), leaf(4, 5, seed=1)
    f = compiled(lambda unused, x, w: (x @ w).tanh() + unused.detach().sum())
    return [torch.autograd.grad(f(unused, x, w).sum(), one, allow_unused=True) for one in (x, w, unused)]


def hooks_on_what_is_not_asked_for(compiled):
    x, w, seen = leaf(3, 4), leaf(4, 5, seed=1), []
    w.register_hook(lambda gradient: seen.append(gradient.sum()))
    f = compiled(lambda x, w: (x @ w).tanh())
    torch.autograd.grad(f(x, w).sum(), x)
    before = len(seen)
    return before, gradients(f(x, w).sum(), x, w), seen


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, tolerance=Tolerance(1e-6, 1e-5))


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_gradient_by_an_input_needs_no_gradients_of_weights(create_graph: bool) -> None:
    compiled, graphs = graphs_of(lambda x, v, w: (x @ v).tanh() @ w)
    x, v, w = leaf(3, 4), leaf(4, 4, seed=1), leaf(4, 4, seed=2)
    torch.autograd.grad(compiled(x, v, w).sum(), x, create_graph=create_graph)
    assert [count(graph, torch.ops.aten.mm.default) for graph in graphs] == [2, 2]


@pytest.mark.fixed_sizes  # the graphs run as they are, without code that computes sizes
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_program_that_asks_for_each_gradient_by_itself_compiles_few_backwards(create_graph: bool) -> None:
    inputs = [leaf(2, 2, seed=seed) for seed in range(8)]
    compiled, graphs = graphs_of(lambda *inputs: torch.stack(inputs).prod(0).tanh() @ inputs[0])
    for _ in range(2):
        for one in inputs:
            eager = torch.stack(inputs).prod(0).tanh() @ inputs[0]
            (found,) = torch.autograd.grad(compiled(*inputs).sum(), one, create_graph=create_graph)
            assert_same(found.detach(), torch.autograd.grad(eager.sum(), one)[0], Tolerance(1e-6, 1e-5))
    assert len(graphs) == 1 + autograd_step._MOST_PARTIAL + 1
