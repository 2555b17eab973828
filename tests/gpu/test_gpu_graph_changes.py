"""Recorded CUDA graphs while the program changes what they use: modules, their states and gradients, aliases of inputs,
owners of results, streams; and errors between replays. Compared with eager."""

from __future__ import annotations

import copy
import queue
import threading
from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE, only_cuda
from tests.gpu.recorded_graphs import close, compiled, randn, recorded, replayed
from torch import nn

import stator

__all__ = ["recorded"]  # around each test


def train(run: Any, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    """The loss and gradients, which replace earlier ones."""
    model.zero_grad()
    loss = run(x).square().mean()
    loss.backward()
    return [loss.detach(), *(None if one.grad is None else one.grad.clone() for one in model.parameters())]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to(DEVICE)


# ---- modules


def test_copies_of_a_compiled_module_take_turns() -> None:
    run = compiled(perceptron())
    models = [run]
    for _ in range(4):
        train(run, run, randn(4, 16))
    models.append(copy.deepcopy(run))
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(1.5)
    for number in range(12):
        model, x = models[number % 2], randn(4, 16)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        eager = perceptron()
        eager.load_state_dict({name.removeprefix("_orig_mod."): value for name, value in state.items()})
        close(train(model, model, x), train(eager, eager, x))


@pytest.mark.parametrize("assign", [False, True])
def test_states_loaded_between_replays(assign: bool) -> None:
    model, eager = perceptron(), perceptron()
    run = compiled(model)
    for number in range(12):
        if number % 3 == 0:
            state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
            model.load_state_dict(copy.deepcopy(state), assign=assign)
            eager.load_state_dict(state)
        x = randn(4, 16)
        with torch.set_grad_enabled(number % 2 == 0):
            close(run(x), eager(x))
        close(train(run, model, x), train(eager, eager, x))
    assert replayed() > 0


def test_parameters_that_are_frozen_and_thawed() -> None:
    model = perceptron()
    eager, run = copy.deepcopy(model), compiled(model)
    for number in range(16):
        for one in (model, eager):
            one[0].requires_grad_(number // 4 % 2 == 0)
        x = randn(4, 16)
        close(train(run, model, x), train(eager, eager, x))


def test_two_graphs_share_a_parameter_and_its_gradient() -> None:
    shared = nn.Linear(16, 16).to(DEVICE)
    eager = copy.deepcopy(shared)
    one, other = compiled(lambda x: shared(x).sin()), compiled(lambda x: shared(x).cos() * 2)
    for number in range(8):
        x, y = randn(4, 16), randn(6, 16)
        if number % 4 == 0:
            shared.zero_grad(), eager.zero_grad()
        first, second = one(x), other(y)
        (second.sum() + first.sum()).backward() if number % 2 else [two.sum().backward() for two in (second, first)]
        (eager(x).sin().sum() + (eager(y).cos() * 2).sum()).backward()
        close([two.grad for two in shared.parameters()], [two.grad for two in eager.parameters()])


# ---- inputs


@pytest.mark.parametrize("written", ["input", "parameter"])
def test_what_a_backward_needs_is_not_read_after_a_write(written: str) -> None:
    weight = nn.Parameter(randn(16, 16))
    run = compiled(lambda x: (x @ weight).sin())
    for number in range(8):
        x = randn(4, 16).requires_grad_()
        y = run(x)
        if number % 2:
            with torch.no_grad():
                (weight if written == "parameter" else x).mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
        else:
            y.sum().backward()
            want = torch.autograd.grad((x @ weight).sin().sum(), [x])[0]
            close(x.grad, want)


def test_inputs_that_share_memory_now_and_then() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (x * y).sin()

    run = compiled(step)
    for number in range(12):
        base = randn(10, 8)
        other = base.clone()
        pairs = [[one[:8], (one[:8], one[2:], one.flip(0)[:8])[number % 3]] for one in (base, other)]
        close(run(*pairs[0]), step(*pairs[1]))
        close(base, other)


def test_a_result_that_another_function_writes_to() -> None:
    def write(y: torch.Tensor) -> torch.Tensor:
        y.mul_(2)
        return y.cos() + 1

    first, second = compiled(lambda x: (x + 1).sin()), compiled(write)
    kept = []
    for number in range(12):
        x = randn(64, 4)
        y = first(x)
        found = second(y)
        want = (x + 1).sin()
        kept.append((y, found, want, write(want)))
        if number % 3 == 0:
            kept.clear()
        for one in kept:
            close(one[:2], one[2:])


# ---- owners of results


def test_another_thread_owns_and_drops_results() -> None:
    run = compiled(lambda x: (x * 3).sin().cumsum(0))
    work: queue.Queue[Any] = queue.Queue(2)
    wrong: list[Any] = []

    def consume() -> None:
        while (item := work.get()) is not None:
            result, want = item
            try:
                close(result.flip(0), want.flip(0))
            except Exception as error:
                wrong.append(error)
            del item, result

    reader = threading.Thread(target=consume)
    reader.start()
    for _ in range(60):
        x = randn(512)
        want = (x * 3).sin().cumsum(0)
        work.put((run(x), want))
    work.put(None)
    reader.join()
    assert not wrong
    assert replayed() > 0


def test_views_of_results_of_several_sizes_outlive_replays() -> None:
    run = compiled(lambda x: ((x + 1).exp(), x.sum(0)), dynamic=True)
    kept = []
    for number in range(24):
        x = randn(8 + number % 3, 16)
        first, second = run(x)
        kept.append((first[1:, ::2].unflatten(1, (2, 4)), second.expand(3, -1), x))
        del first, second
        kept = kept[-7:]
        for one, other, given in kept:
            want = (given + 1).exp()[1:, ::2].unflatten(1, (2, 4)), given.sum(0).expand(3, -1)
            close((one, other), want)


# ---- errors


def test_an_error_in_a_backward_leaves_nothing_behind() -> None:
    model = perceptron()
    eager, run = copy.deepcopy(model), compiled(model)
    for number in range(12):
        x = randn(4, 16).requires_grad_()
        if number % 3 == 2:

            def fail(grad: torch.Tensor) -> None:
                raise ValueError("a hook fails")

            y = run(x)
            y.register_hook(fail)
            with pytest.raises(ValueError, match="a hook fails"):
                y.sum().backward()
            continue
        close(train(run, model, x), train(eager, eager, x))


# ---- streams


@only_cuda
@pytest.mark.parametrize("freed", ["by a reset", "with the function"])
def test_memory_of_copied_inputs_is_freed_behind_the_replays_of_other_streams(freed: str) -> None:
    run: Any = compiled(lambda x: (x * 2).relu() + 1)
    size, late = 1 << 22, torch.cuda.Stream()
    for _ in range(8):  # inputs that move are copied
        run(torch.ones(size, device=DEVICE))
    inputs = [torch.full((size,), float(number), device=DEVICE) for number in range(3)]
    for x in inputs:
        run(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(late):
        torch.cuda._sleep(200_000_000)
        y = run(inputs[2])
    if freed == "by a reset":
        stator.reset()
    else:
        del run
    others = [torch.full((size,), -1.0, device=DEVICE) for _ in range(8)]
    torch.cuda.synchronize()
    close(y, inputs[2] * 2 + 1)
    assert all(bool((one == -1).all()) for one in others), "a replay wrote to memory that was freed before it ran"
