"""`x.data = y`: the tensor moves to other memory, in the graph and behind it, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differential import BY_BACKEND, Counts, Program, assert_same_outcome, check, corpus, observe
from torch import nn

import stator

PROGRAMS, program = corpus()


def row() -> torch.Tensor:
    return torch.linspace(-1, 2, 4)


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


@program(row, row)
def to_an_input(x: torch.Tensor, y: torch.Tensor) -> Any:
    before = x[:2]
    x.data = y
    x.add_(1)
    return x * 2, before, y + x, x


@program(row, lambda: torch.ones(2, 3))
def to_other_sizes(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * 2
    x.data = (y + 1).t()
    return z, x.shape, x.stride(), x.sum(0) * x.numel()


@program(row)
def several_times(x: torch.Tensor) -> Any:
    y = x + 1
    x.data = y
    y.mul_(2)
    x.data = x.data * x
    x.data += 1
    return y, x.data


@program(row)
def of_a_result(x: torch.Tensor) -> Any:
    y = x + 1
    y.data = x * 3
    return y * 2, y


@program(layer, layer)
def moving_averages(average: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for mine, other in zip(average.parameters(), model.parameters(), strict=True):
            mine.data = 0.75 * mine.data + 0.25 * other.data


@program(layer, layer, row)
def weights_put_in_and_back(model: nn.Module, other: nn.Module, x: torch.Tensor) -> Any:
    with torch.no_grad():
        kept = [one.data for one in model.parameters()]
        for mine, one in zip(model.parameters(), other.parameters(), strict=True):
            mine.data = one.data
        y = model(x)
        for mine, one in zip(model.parameters(), kept, strict=True):
            mine.data = one
        return y, model(x)


@program(layer, row)
def a_step_of_training(model: nn.Module, x: torch.Tensor) -> Any:
    loss = model(x).square().mean()
    loss.backward()
    for one in model.parameters():
        one.data = one.data - 0.5 * one.grad
        one.grad = None
    return loss.detach()


@program(lambda: torch.tensor([3, 4]), row)
def known_contents(sizes: torch.Tensor, x: torch.Tensor) -> Any:
    first = sizes.tolist()
    sizes.data = torch.tensor([2, 2])
    return first, sizes.tolist(), x.split(sizes.tolist())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("case", PROGRAMS)
def test_one_graph(case: Program, backend: str) -> None:
    stator.reset()
    compiled, counts = stator.compile(case.function, backend=backend, fullgraph=True), Counts()
    mine, others = case.arguments(), case.arguments()
    for _ in range(4):
        assert_same_outcome(observe(compiled, mine), observe(case.function, others), BY_BACKEND[backend])
        # modules stay, and go on changing
        mine, others = (
            tuple(one if isinstance(one, nn.Module) else make() for one, make in zip(group, case.makers, strict=True))
            for group in (mine, others)
        )
    assert counts.compilations == 1


# ---- tensors to differentiate by ----


def clamped(model: nn.Module, x: torch.Tensor) -> Any:
    for one in model.parameters():
        one.data = one.data.clamp(-0.25, 0.25)
    return model(x).square().sum()


def used_before(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x.sin() * 2
    x.data = y.detach() + 1
    return (z * x.exp()).sum() + x.square().sum()


def squared_before(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * x  # saves the tensor itself
    x.data = y * 3
    return z.sum()


def moved_twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y + 1
    z = x * y
    with torch.no_grad():
        x.mul_(2)
    x.data = x.data * 2
    return (z + x.cos()).sum(), x.requires_grad, x.is_leaf


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("function", [used_before, squared_before, moved_twice])
def test_gradients_by_a_tensor_that_moved(function: Any, backend: str) -> None:
    check(function, row().requires_grad_(), row(), backend=backend, fullgraph=True, gradients=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_training_with_clamped_weights(backend: str) -> None:
    histories = []
    for compiled in (False, True):
        model = layer()
        run = stator.compile(clamped, backend=backend, fullgraph=True) if compiled else clamped
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(4):
            optimizer.zero_grad()
            run(model, row()).backward()
            optimizer.step()
        histories.append([*model.parameters(), *[one.grad for one in model.parameters()]])
    for one, other in zip(*histories, strict=True):
        torch.testing.assert_close(one, other)


def backward_behind(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y + 1
    x.sin().sum().backward()
    return x.grad


def in_other_sizes(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y[:2]
    return x * 2


@pytest.mark.parametrize("function", [backward_behind, in_other_sizes])
def test_where_the_graph_ends(function: Any) -> None:
    check(function, row().requires_grad_(), row(), breaks=1)


def test_the_tensor_twice() -> None:
    compiled = stator.compile(to_an_input, backend="eager", fullgraph=True)
    for same in (False, True, False):
        pair, twin = ([x, x if same else x + 1] for x in (row(), row()))
        found, expected = compiled(*pair), to_an_input(*twin)
        for one, other in zip((*found, *pair), (*expected, *twin), strict=True):
            assert torch.equal(one, other)
