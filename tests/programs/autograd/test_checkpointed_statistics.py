"""Batch normalisation in a checkpoint: eager runs the function again in each backward, which moves the running
statistics once more. Compiled code does, too, though it runs nothing twice: up to rounding. In float64: the gradient of
a bias in front of a normalisation is zero but for rounding, and in float32 that rounding, beside gradients of up to 30,
is larger than a difference that would count elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.differential import Tolerance
from tests.programs.scenarios import BACKENDS, Scenario, check, may_break, scenarios
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import stator

Compiler = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Net(nn.Module):
    """Two results, one of which has nothing to do with the checkpointed part."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, momentum=momentum)
        self.last = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum))
        self.beside = nn.Linear(4, 4)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)).tanh())

    def forward(self, x: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return checkpoint(self.body, x, **{"use_reentrant": False, **options}), self.beside(x)

    def statistics(self) -> list[torch.Tensor]:
        return [buffer.clone() for buffer in self.buffers()]


def data(seed: int = 1) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def one_backward(compiled: Compiler) -> Any:
    net = Net()
    a, b = compiled(net)(data())
    ((a * torch.arange(4.0)).sin().sum() + b.sum()).backward()
    return net.statistics(), [one.grad for one in net.parameters()]


def no_backward(compiled: Compiler) -> Any:
    net = Net()
    compiled(net)(data())
    return net.statistics()


def a_backward_past_the_checkpoint(compiled: Compiler) -> Any:
    net = Net()
    compiled(net)(data())[1].sum().backward()
    return net.statistics()


def two_backwards(compiled: Compiler) -> Any:
    net = Net()
    a, _ = compiled(net)(data())
    a.sum().backward(retain_graph=True)
    once = net.statistics()
    a.sum().backward()
    return once, net.statistics()


def two_calls_and_one_backward(compiled: Compiler) -> Any:
    net = Net()
    f = compiled(net)
    (f(data())[0] * f(data(2))[0]).sum().backward()
    return net.statistics()


def steps_of_training(compiled: Compiler) -> Any:
    net = Net()
    f, optimizer = compiled(net), torch.optim.SGD(net.parameters(), 0.1)
    for seed in range(4):
        a, b = f(data(seed))
        (a.square().sum() + b.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.statistics(), list(net.parameters())


def results_that_are_views(compiled: Compiler) -> Any:
    net = Net()

    def program(x: torch.Tensor) -> Any:
        a, _ = net(x)
        return a[:, 1:], a[0]

    one, other = compiled(program)(data())
    (one.sum() + other.sum()).backward()
    return net.statistics()


def a_result_that_is_added_to_an_input(compiled: Compiler) -> Any:
    net, total = Net(), torch.zeros(6, 4)

    def program(x: torch.Tensor, total: torch.Tensor) -> None:
        total.add_(net(x)[0])

    compiled(program)(data(), total)
    total.square().sum().backward()
    return net.statistics()


def reentrant(compiled: Compiler) -> Any:
    net = Net()
    compiled(lambda x: net(x, use_reentrant=True)[0].square().sum())(data()).backward()
    return net.statistics()


def options_that_change_nothing(compiled: Compiler) -> Any:
    net = Net()
    options = {"early_stop": False, "determinism_check": "none", "context_fn": lambda: (nullcontext(), nullcontext())}
    compiled(lambda x: net(x, **options)[0].square().sum())(data()).backward()
    return net.statistics()


def in_sequence(compiled: Compiler) -> Any:
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(4)])
    compiled(lambda x: checkpoint_sequential(layers, 2, x, use_reentrant=False).sum())(data()).backward()
    return [buffer.clone() for buffer in layers.buffers()]


def one_normalisation_in_two_checkpoints(compiled: Compiler) -> Any:
    net = Net()

    def program(x: torch.Tensor) -> torch.Tensor:
        once = checkpoint(net.body, x, use_reentrant=False)
        return checkpoint(net.body, once * 2, use_reentrant=False).square().sum()

    compiled(program)(data()).backward()
    return net.statistics()


def a_backward_in_the_program(compiled: Compiler) -> Any:
    net = Net()

    def step(x: torch.Tensor) -> Any:
        a, b = net(x)
        ((a * torch.arange(4.0)).sin().sum() + b.sum()).backward()
        return [one.grad for one in net.parameters()]

    return compiled(step)(data()), net.statistics()


@may_break
def two_backwards_one_of_them_in_the_program(compiled: Compiler) -> Any:
    net = Net()

    def step(x: torch.Tensor) -> Any:
        a, b = net(x)
        wanted = torch.autograd.grad((a * torch.arange(4.0)).sin().sum(), net.first.weight, retain_graph=True)
        return wanted[0], a.sum() + b.sum()

    found, loss = compiled(step)(data())
    inside = net.statistics()
    loss.backward()
    return found, inside, net.statistics()


def parameters_that_are_frozen(compiled: Compiler) -> Any:
    net = Net().requires_grad_(False)
    compiled(net)(data())[0].square().sum().backward()
    return net.statistics()


@may_break
def nothing_to_differentiate(compiled: Compiler) -> Any:
    """Eager stops before it comes to the normalisation again."""
    net = Net().requires_grad_(False)
    net.last.requires_grad_(True)
    compiled(net)(data().detach())[0].square().sum().backward()
    return net.statistics()


@may_break
def statistics_without_a_counter(compiled: Compiler) -> Any:
    """A momentum that is a number in the code is not followed: it could have been computed."""
    mean, variance = torch.zeros(4), torch.ones(4)

    def program(x: torch.Tensor) -> torch.Tensor:
        def body(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.batch_norm(x, mean, variance, training=True, momentum=0.25).sin()

        return checkpoint(body, x, use_reentrant=False).sum()

    compiled(program)(data()).backward()
    return mean, variance


@may_break
def one_inside_of_another(compiled: Compiler) -> Any:
    net = Net()
    program = compiled(lambda x: checkpoint(lambda y: net(y)[0].sin(), x, use_reentrant=False).sum())
    program(data()).backward()
    return net.statistics()


@may_break
def a_mean_over_all_calls(compiled: Compiler) -> Any:
    """Without a momentum, how far the statistics are moved depends on how often they were."""
    net = Net(momentum=None)
    f = compiled(net)
    for seed in range(3):
        f(data(seed))[0].square().sum().backward()
    return net.statistics()


@may_break
def a_break_behind_the_checkpoint(compiled: Compiler) -> Any:
    net = Net()

    def program(x: torch.Tensor) -> torch.Tensor:
        a, b = net(x)
        stator.graph_break()
        return (a * 2 + b).sum()

    compiled(program)(data()).backward()
    return net.statistics()


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), *BACKENDS[1:]])
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_statistics_are_moved_as_in_eager(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True, tolerance=Tolerance(1e-11, 1e-13))
