"""Recorded CUDA graphs, compared with eager: each way to overwrite a result or to read a stale input.

-s shows the measured memory and times.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE, only_cuda
from tests.gpu.recorded_graphs import MODELS, close, compiled, make, randn, recorded, replayed
from torch import library, nn

import stator
from stator.base import counters
from stator.runtime.cuda import result_memory

__all__ = ["recorded"]  # around each test
every_model = pytest.mark.parametrize("name", MODELS)


# ---- results


def test_uses_of_storages_are_known() -> None:
    assert result_memory.USES_ARE_KNOWN


@every_model
def test_results_in_a_list(name: str) -> None:
    model, other, draw = make(name)
    model.eval(), other.eval()
    run = compiled(model)
    with torch.no_grad():
        kept = [(run(x), other(x)) for x in [draw() for _ in range(12)]]
    for actual, expected in kept:
        close(actual, expected)
    assert replayed() >= 10


def test_the_last_result_of_a_large_one() -> None:
    run = compiled(lambda x: (x * 2).sin() + 1)
    before, expected = None, None
    for _ in range(8):
        x = randn(4096, 2048)  # 32 MiB
        result = run(x)
        assert before is None or torch.equal(before, expected)
        close(result, (x * 2).sin() + 1, 1e-5)
        before, expected = result, result.clone()
    assert replayed() >= 6


def test_chained_functions() -> None:
    f, g = compiled(lambda x: (x + 1).sin()), compiled(lambda x: (x + 2).cos())
    for _ in range(6):
        x = randn(300)
        y = f(x)
        close((y, g(y), g(f(x))), ((x + 1).sin(), ((x + 1).sin() + 2).cos(), ((x + 1).sin() + 2).cos()))


def test_results_fed_back() -> None:
    run = compiled(lambda x, w: torch.tanh(x @ w))
    w = randn(64, 64) * 0.1
    y = expected = randn(8, 64)
    for _ in range(20):
        y, expected = run(y, w), torch.tanh(expected @ w)
        close(y, expected)


def test_changes_and_views_of_results() -> None:
    run = compiled(lambda x: (x * 3).exp())
    kept = []
    for _ in range(8):
        x = randn(64, 8)
        y = run(x)
        kept.append((y[3:].t(), (x * 3).exp()[3:].t()))
        y[:3].zero_()
    for actual, expected in kept:
        close(actual, expected)


@only_cuda
def test_a_result_whose_storage_is_resized() -> None:
    run = compiled(lambda x: (x * 3).exp())
    for _ in range(6):
        x = randn(64, 8)
        y = run(x)
        close(y, (x * 3).exp())
        y.untyped_storage().resize_(0)
        del y


def test_a_generation_loop() -> None:
    model, other, draw = make("language")
    tokens = draw()[:, :32]
    step = compiled(lambda tokens: model(tokens)[:, -1].argmax(-1, keepdim=True))
    actual = expected = tokens
    with torch.no_grad():
        for _ in range(10):
            actual = torch.cat((actual[:, 1:], step(actual)), 1)
            expected = torch.cat((expected[:, 1:], other(expected)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(actual, expected)


# ---- inputs


def test_a_written_cache() -> None:
    def step(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, x)
        return cache.softmax(1).sum(0)

    run = compiled(step)
    cache = torch.zeros(2, 16, 8, device=DEVICE)
    other = cache.clone()
    for number in range(12):
        if number in (4, 8):
            cache = cache.clone()
        x, at = randn(2, 1, 8), torch.tensor([number], device=DEVICE)
        close(run(cache, at, x), step(other, at, x))
        close(cache, other)


def test_parameters_that_change() -> None:
    model, other, draw = make("perceptron")
    run = compiled(model)
    with torch.no_grad():
        for number in range(12):
            x = draw()
            close(run(x), other(x))
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                value = torch.randn_like(one) * 0.1
                if number % 3 == 0:
                    one.data = value
                else:
                    one.copy_(value)
                two.copy_(value)


@pytest.mark.parametrize("count", [5, 150])
def test_sizes(count: int) -> None:
    model, other, _ = make("perceptron")
    run = compiled(model, dynamic=True)
    with torch.no_grad():
        for _ in range(2):
            for size in range(2, count):
                x = randn(size, 64)
                close(run(x), other(x))
    assert counters.counts["cuda_graphs:recorded"] == min(count - 2, 32)


# ---- training


def plain_step(model: nn.Module, optimizer: Any, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    loss = model(draw()).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def accumulating_step(model: nn.Module, optimizer: Any, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    losses = []
    for _ in range(3):
        losses.append(model(draw()).float().square().mean())
        losses[-1].backward()
    optimizer.step()
    optimizer.zero_grad()
    return torch.stack(losses).detach()


def kept_gradients_step(model: nn.Module, optimizer: Any, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=False)
    loss = model(draw()).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def two_forwards_step(model: nn.Module, optimizer: Any, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    one, two = model(draw()), model(draw())
    optimizer.zero_grad()
    loss = one.float().square().mean() + two.float().sin().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def retaining_step(model: nn.Module, optimizer: Any, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    optimizer.zero_grad()
    result = model(draw())
    result.float().square().mean().backward(retain_graph=True)
    model(draw()).float().sin().mean().backward()
    loss = result.float().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def early_step(model: nn.Module, optimizer: Any, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Gradients end before the forward: the next backward puts them where saved values lie."""
    optimizer.zero_grad()
    loss = model(draw()).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def changing_step(model: nn.Module, optimizer: Any, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Gradients live during the forward in some steps."""
    optimizer.number = getattr(optimizer, "number", -1) + 1
    step = (early_step, early_step, early_step, plain_step, retaining_step)[optimizer.number % 5]
    return step(model, optimizer, draw)


STEPS = [
    *(plain_step, accumulating_step, kept_gradients_step, two_forwards_step, retaining_step),
    *(early_step, changing_step),
]


def train(model: nn.Module, step: Any, draw: Callable[[], torch.Tensor], count: int = 8) -> list[torch.Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = [step(model, optimizer, draw) for _ in range(count)]
    return [*losses, *[one.detach() for one in model.parameters()], *model.buffers()]


@every_model
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_training(name: str, step: Any) -> None:
    model, other, draw = make(name)
    expected = train(other, step, draw)
    close(train(compiled(model), step, draw), expected, 2e-3)
    assert replayed() >= 8


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_blocks_one_by_one(step: Any) -> None:
    model, other, draw = make("transformer")
    expected = train(other, step, draw)
    for at, block in enumerate(model):  # type: ignore[arg-type]
        model[at] = compiled(block)  # type: ignore[index]
    close(train(model, step, draw), expected, 2e-3)
    assert replayed() >= 20


def test_a_compiled_optimizer() -> None:
    model, other, draw = make("perceptron")
    outcomes = []
    for one, wrap in ((model, compiled), (other, lambda function: function)):
        optimizer = torch.optim.Adam(one.parameters(), lr=0.01, capturable=DEVICE == "cuda")
        run, update = wrap(one), wrap(optimizer.step)
        torch.manual_seed(1)
        for _ in range(6):
            optimizer.zero_grad()
            run(draw()).square().mean().backward()
            update()
        outcomes.append([parameter.detach() for parameter in one.parameters()])
    close(*outcomes, 2e-3)


@only_cuda
def test_memory_of_training() -> None:
    """Prints the peak of torch's allocator, which a recording may exceed by what stays allocated between calls."""
    for name in ("transformer", "language"):
        peaks = {}
        for kind in ("eager", "default", "reduce-overhead"):
            model, _, draw = make(name)
            run = model if kind == "eager" else stator.compile(model, mode=kind)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for number in range(8):
                if number == 5:
                    torch.cuda.reset_peak_memory_stats()
                plain_step(run, optimizer, draw)
            peaks[kind] = torch.cuda.max_memory_allocated() >> 20
            pool = counters.counts["memory:cuda_graphs"] >> 20
            del model, run, optimizer
            gc.collect()
        print(f"\n{name}: peak in MiB {peaks}, pool {pool} MiB")
        assert peaks["reduce-overhead"] <= 2 * peaks["default"] + 64


@only_cuda
@pytest.mark.parametrize("name", ["transformer", "language"])
def test_gradients_take_the_memory_of_saved_values(name: str) -> None:
    pools = {}
    for step in (plain_step, early_step):
        model, _, draw = make(name)
        counters.clear()
        train(compiled(model), step, draw)
        pools[step.__name__] = counters.counts["memory:cuda_graphs"]
        gradients = sum(one.nbytes for one in model.parameters())
        del model
        gc.collect()
        torch.cuda.empty_cache()
    print(f"\n{name}: pools in MiB {[size >> 20 for size in pools.values()]}, gradients {gradients >> 20}")
    assert pools["early_step"] <= pools["plain_step"] - gradients // 2


@only_cuda
def test_memory_of_batches_that_take_turns() -> None:
    """The recordings of a batch that was read in place are freed before those that copy their batch take memory."""
    model, other, draw = make("language")
    run, batches, pools = compiled(model), [draw(), draw()], []
    for turn in (0, 0, 1, 0, 1, 0):
        model.zero_grad()
        run(batches[turn]).square().mean().backward()
        pools.append(counters.counts["memory:cuda_graphs"])
    other(batches[0]).square().mean().backward()
    close([one.grad for one in model.parameters()], [one.grad for one in other.parameters()], 2e-3)
    print(f"\npool in MiB after each step: {[size >> 20 for size in pools]}")
    assert pools[-1] <= 1.3 * pools[1]


@only_cuda
def test_gradients_that_live_during_the_next_forward() -> None:
    """Forward and backward settle in memory that neither writes to while the other's results are in use."""
    model, other, draw = make("language")
    run, x = compiled(model), draw()
    recorded = []
    for _ in range(12):
        found = run(x)
        model.zero_grad()
        found.square().mean().backward()
        del found
        recorded.append(counters.counts["cuda_graphs:recorded"])
    other(x).square().mean().backward()
    close([one.grad for one in model.parameters()], [one.grad for one in other.parameters()], 2e-3)
    print(f"\nrecorded after each step: {recorded}, pool {counters.counts['memory:cuda_graphs'] >> 20} MiB")
    assert recorded[-1] == 2


@only_cuda
def test_memory_is_freed() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model, _, draw = make("transformer")
    run = compiled(model)
    for _ in range(5):
        run(draw()).square().mean().backward()
    del run, model
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # one for each thread and stream
    torch.cuda.empty_cache()
    after = torch.cuda.memory_allocated()
    print(f"\nallocated {before >> 10} KiB before, {after >> 10} KiB after")
    assert after - before < 1 << 20


# ---- random numbers, streams, threads, captures


def test_random_numbers() -> None:
    run = compiled(lambda x: nn.functional.dropout(x, 0.5))
    found = [run(torch.ones(512, device=DEVICE)) for _ in range(6)]
    assert len({tuple(one.tolist()) for one in found}) == 6
    assert 0.3 < torch.stack(found).eq(0).float().mean() < 0.7
    states = []
    for _ in range(2):
        torch.manual_seed(7)
        states.append([run(torch.ones(512, device=DEVICE)) for _ in range(3)])
    assert all(torch.equal(one, two) for one, two in zip(*states, strict=True))


@only_cuda
def test_eager_s_random_numbers() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x) * torch.randn_like(x)

    run = compiled(draw, options={"exact_random": True})
    found = []
    for function in (run, draw):
        torch.manual_seed(3)
        found.append([function(torch.ones(1000, device=DEVICE)) for _ in range(6)] + [torch.rand(5, device=DEVICE)])
    close(*found, 1e-6)


@only_cuda
def test_streams() -> None:
    run = compiled(lambda x, w: (x @ w).relu() @ w)
    w = randn(512, 512)
    streams = [torch.cuda.Stream() for _ in range(3)]
    kept = []
    for number in range(24):
        x = randn(512, 512)
        stream = streams[number % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            kept.append((x, run(x, w), stream))
    torch.cuda.synchronize()
    for x, result, _ in kept:
        close(result, (x @ w).relu() @ w, 1e-2)


def test_threads() -> None:
    run = compiled(lambda x: (x * 2).sin().sum(-1))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream() if DEVICE == "cuda" else None):
            made = torch.Generator(DEVICE).manual_seed(seed)
            for _ in range(50):
                x = torch.randn(64, 256, device=DEVICE, generator=made)
                result, expected = run(x), (x * 2).sin().sum(-1)
                if not torch.allclose(result, expected, atol=1e-3):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@only_cuda
def test_a_capture_that_fails() -> None:
    """CUDA refuses what waits for the device. Then the program runs as it is, and random numbers work as before."""

    @library.custom_op("hazards::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        torch.cuda.current_stream().synchronize()
        return x + 1

    waits.register_fake(torch.empty_like)
    run = compiled(lambda x: waits(x * 2).sin() + torch.rand_like(x) * 0)
    with pytest.warns(RuntimeWarning, match="without a CUDA graph"):
        for _ in range(5):
            x = randn(100)
            close(run(x), (x * 2 + 1).sin())
    torch.manual_seed(5)
    one = torch.rand(10, device=DEVICE)
    torch.manual_seed(5)
    assert torch.equal(one, torch.rand(10, device=DEVICE))
    other = compiled(lambda x: (x * 2).exp())
    for _ in range(4):
        x = randn(100)
        close(other(x), (x * 2).exp())
    assert replayed() >= 3


@only_cuda
def test_a_capture_of_the_program() -> None:
    run = compiled(lambda x: (x * 2).sin() + 1)
    x = randn(64)
    for _ in range(3):
        run(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
    for _ in range(3):
        x.copy_(randn(64))
        graph.replay()
        close(y, (x * 2).sin() + 1)


def test_what_cannot_be_recorded_says_so() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        return (x + 1)[x > 0] * 2

    run = compiled(positive)
    with pytest.warns(RuntimeWarning, match="waits for data"):
        for _ in range(4):
            x = randn(50)
            close(run(x), positive(x))


@only_cuda
def test_host_time() -> None:
    """Prints the time of the host for a call."""
    layers = [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()] * 8
    model = nn.Sequential(*layers).to(DEVICE)
    x = randn(16, 64)
    times = {}
    with torch.no_grad():
        for kind in ("eager", "default", "reduce-overhead"):
            run = model if kind == "eager" else stator.compile(model, mode=kind)
            for _ in range(10):
                run(x)
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                run(x)
            spent = time.perf_counter() - start
            torch.cuda.synchronize()
            times[kind] = f"{spent * 5000:.0f} us, {(time.perf_counter() - start) * 5000:.0f} us with the GPU"
    print(f"\na call of 24 layers: {times}")
