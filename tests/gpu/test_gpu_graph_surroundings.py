"""Recorded CUDA graphs inside of programs that do more than call them: streams and threads, hooks, modes of autograd,
scalers, checkpoints, replaced parameters, `stator.reset()`. Compared with eager."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE, only_cuda
from tests.gpu.recorded_graphs import close, compiled, convolutions, make, randn, recorded, replayed
from torch import nn
from torch.utils.checkpoint import checkpoint

import stator

__all__ = ["recorded"]  # around each test


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


# ---- streams and threads


@only_cuda
def test_a_dropped_result_that_an_earlier_stream_still_reads() -> None:
    """Another function's replay, on another stream, comes between."""
    double, other = compiled(lambda x: (x * 2).relu()), compiled(lambda x: (x - 1).abs())
    x, late = torch.ones(1 << 20, device=DEVICE), torch.cuda.Stream()
    for _ in range(3):
        double(x), other(x)
    torch.cuda.synchronize()
    y = double(x)
    with torch.cuda.stream(late):
        other(x)
    torch.cuda._sleep(200_000_000)  # the host runs ahead
    read = y + 0
    del y
    with torch.cuda.stream(late):
        double(x * 5)
    torch.cuda.synchronize()
    close(read, x * 2)


@only_cuda
def test_prefetched_inputs() -> None:
    run, side = compiled(lambda x: (x @ x.t()).sum(-1)), torch.cuda.Stream()
    batches = [torch.randn(64, 64).pin_memory() for _ in range(12)]
    found = []
    for batch in batches:
        with torch.cuda.stream(side):
            x = batch.to(DEVICE, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        x.record_stream(torch.cuda.current_stream())
        found.append(run(x))
    close([one.cpu() for one in found], [(batch @ batch.t()).sum(-1) for batch in batches], 1e-2)


def test_threads_that_train() -> None:
    """Each has a stream and a model of its own; autograd runs the backwards of all in one thread."""
    outcomes: dict[tuple[int, bool], Any] = {}

    def train(seed: int, model: nn.Module, inputs: list[torch.Tensor], run: Any) -> None:
        stream = torch.cuda.Stream() if DEVICE == "cuda" else None
        if stream is not None:
            stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for x in inputs:
                optimizer.zero_grad()
                run(x).square().mean().backward()
                optimizer.step()
            outcomes[seed, run is model] = [one.detach().clone() for one in model.parameters()]

    threads = []
    for seed in range(3):
        model, other, draw = make("perceptron")
        inputs = [draw() for _ in range(10)]
        train(seed, other, inputs, other)
        threads.append(threading.Thread(target=train, args=(seed, model, inputs, compiled(model))))
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    for seed in range(3):
        close(outcomes[seed, False], outcomes[seed, True], 2e-3)
    assert replayed() >= 20


# ---- autograd


def test_functions_called_by_hooks_of_the_backward() -> None:
    """Replays in the middle of a backward, of the function whose backward it is as well."""
    outcomes = []
    for wrap in (compiled, lambda function: function):
        torch.manual_seed(2)
        run, scale = wrap(lambda x: (x * 2).sin() * x), wrap(lambda g: g * 0.5 + 1)
        results: list[Any] = []
        for _ in range(8):
            x = randn(32, 32).requires_grad_()
            middle = run(x)
            middle.register_hook(lambda g, run=run, scale=scale: scale(g) + run(g.detach()))
            run(middle).sum().backward()
            results += [middle.detach(), x.grad]
        outcomes.append(results)
    close(*outcomes)


def test_saved_tensors_on_the_cpu() -> None:
    model, other, draw = make("transformer")
    run = compiled(model)
    for _ in range(5):
        x = draw()
        for call, owner in ((run, model), (other, other)):
            owner.zero_grad()
            with torch.autograd.graph.save_on_cpu():
                result = call(x)
            result.square().mean().backward()
        close(gradients(model), gradients(other), 2e-3)


def test_second_derivatives() -> None:
    outcomes = []
    for wrap in (compiled, lambda function: function):
        torch.manual_seed(2)
        run, found = wrap(lambda x, w: torch.tanh(x @ w).sum(-1)), []
        for _ in range(6):
            x, w = randn(16, 8).requires_grad_(), randn(8, 8).requires_grad_()
            (first,) = torch.autograd.grad(run(x, w).sum(), x, create_graph=True)
            first.square().sum().backward()
            found += [first.detach(), x.grad, w.grad]
        outcomes.append(found)
    close(*outcomes, 1e-3)


def test_modes_of_autograd_take_turns() -> None:
    model, other, draw = make("perceptron")
    run = compiled(model)
    modes = [torch.enable_grad, torch.no_grad, torch.inference_mode]
    kept = []
    for number in range(18):
        with modes[number % 3]():
            x = draw()
            kept.append((run(x), other(x)))
    for result, expected in kept:
        assert (result.requires_grad, result.is_inference()) == (expected.requires_grad, expected.is_inference())
        close(result, expected)


def test_checkpointed_blocks() -> None:
    model, other, draw = make("transformer")
    outcomes = []
    for blocks, wrap in ((model, compiled), (other, lambda function: function)):
        run = wrap(lambda x, blocks=blocks: checkpoint(blocks[1], blocks[0](x), use_reentrant=False))
        torch.manual_seed(2)
        found = []
        for _ in range(5):
            blocks.zero_grad()
            result = run(draw())
            result.square().mean().backward()
            found += [result.detach(), *gradients(blocks)]
        outcomes.append(found)
    close(*outcomes, 2e-3)


@only_cuda
def test_a_scaler_of_gradients() -> None:
    """float16, and a step whose gradients overflow: no parameter changes then."""
    outcomes = []
    model, other, draw = make("perceptron")
    inputs = [draw() for _ in range(8)]
    inputs[4] = inputs[4] * 1e6
    for one, run in ((model, compiled(model)), (other, other)):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10)
        scales = []
        for x in inputs:
            optimizer.zero_grad()
            with torch.autocast(DEVICE, torch.float16):
                loss = run(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        outcomes.append((scales, [parameter.detach() for parameter in one.parameters()]))
    assert outcomes[0][0] == outcomes[1][0]
    close(outcomes[0][1], outcomes[1][1], 2e-2)


# ---- what the graph reads


def test_numbers_and_scalars_of_the_cpu() -> None:
    def scaled(x: torch.Tensor, number: float, scalar: torch.Tensor) -> torch.Tensor:
        return x * number + scalar

    run = compiled(scaled)
    for number in range(12):
        x, scalar = randn(64), torch.tensor(number * 0.25)
        close(run(x, number * 0.5, scalar), scaled(x, number * 0.5, scalar))


def test_replaced_parameters_and_buffers() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).to(DEVICE)
    other = copy.deepcopy(model)
    run = compiled(model)
    for number in range(16):
        x = randn(8, 16)
        if number % 4 == 3:
            weight, mean = randn(16, 16), randn(16)
            for one in (model, other):
                one[0].weight = nn.Parameter(weight.clone())
                one[1].running_mean = mean.clone()
        model.train(number % 3 == 0), other.train(number % 3 == 0)
        close(run(x), other(x), 1e-3)
    close(list(model.buffers()), list(other.buffers()), 1e-3)


def test_models_take_turns() -> None:
    """Results of one stay while the others run in the memory that all share."""
    made = [make(name) for name in ("perceptron", "convolutions", "transformer", "perceptron")]
    runs = [compiled(model.eval()) for model, _, _ in made]
    kept: list[Any] = []
    with torch.no_grad():
        for turn in range(6):
            for run, (_, other, draw) in zip(runs, made, strict=True):
                x = draw()
                kept.append((run(x), other.eval()(x)))
                if turn % 2:
                    kept.pop(0)
    for result, expected in kept:
        close(result, expected, 1e-3)


@only_cuda
def test_others_free_the_memory_that_products_work_in() -> None:
    """torch keeps that memory for a stream; torch.compile frees it with each of its own recordings."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y  # sums of parts of the long rows lie in the memory of the library

    def large(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(16) * 2

    x, y = torch.randn(64, 1 << 16, device=DEVICE), torch.randn(1 << 16, 64, device=DEVICE)
    z = torch.ones(1 << 19, device=DEVICE)
    compiled = [stator.compile(one, fullgraph=True, mode="reduce-overhead") for one in (product, large)]
    for _ in range(3):
        torch.testing.assert_close(compiled[0](x, y), x @ y, rtol=1e-3, atol=1e-2)
    torch._C._cuda_clearCublasWorkspaces()
    held = [compiled[1](z) for _ in range(4)]
    torch.cuda.empty_cache()
    for _ in range(3):
        torch.testing.assert_close(compiled[0](x, y), x @ y, rtol=1e-3, atol=1e-2)
    assert all(bool((one == 2).all()) for one in held)


def test_a_result_held_as_dlpack() -> None:
    run = compiled(lambda x: (x * 3).exp())
    kept = []
    for _ in range(6):
        x = randn(32)
        kept.append((torch.from_dlpack(run(x)), (x * 3).exp()))
    for found, expected in kept:
        close(found, expected)


# ---- the end


@pytest.mark.parametrize("training", [False, True])
def test_reset_keeps_results_and_gives_the_memory_back(training: bool) -> None:
    gc.collect()
    before = _reserved()
    model = convolutions().to(DEVICE).train(training)
    other = copy.deepcopy(model)
    run, kept = compiled(model), []
    with contextlib.nullcontext() if training else torch.no_grad():
        for _ in range(4):
            x = randn(32, 3, 64, 64)
            kept = [(run(x), other(x))]
    stator.reset()
    gc.collect()
    torch.randn(1 << 22, device=DEVICE)  # takes what is free
    for result, expected in kept:
        close(result, expected, 1e-3)
        if training:
            result.square().mean().backward(), expected.square().mean().backward()
            close(gradients(model), gradients(other), 1e-2)
    kept.clear()
    del run, model, other, result, expected, x
    gc.collect()
    assert _reserved() <= before + (64 << 20)  # workspaces of cuDNN and cuBLAS


def _reserved() -> int:
    if DEVICE == "cpu":
        return 0
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()
