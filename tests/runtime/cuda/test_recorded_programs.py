"""Compiled programs, recorded and replayed on a stand-in for a GPU, give eager's results, gradients and effects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_capture import FakeCapture
from torch import nn

import stator
from stator import pipeline
from stator.base import counters, logs
from stator.runtime.cuda import graphs


@pytest.fixture(autouse=True)
def capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCapture]:
    logs.forget_warnings()
    counters.clear()
    made = FakeCapture(16 << 20)
    pool = graphs.GraphPool(torch.device("cpu"), made)
    record = graphs.record
    monkeypatch.setattr(pipeline, "recording_device", lambda program: pool.device)
    monkeypatch.setattr(graphs, "pool_of", lambda device: pool)
    monkeypatch.setattr(
        graphs, "record", lambda call, inputs, *rest: record(made.watched(call, inputs.boxed), inputs, *rest)
    )
    yield made


def compiled(function: Any, **options: Any) -> Any:
    return stator.compile(function, mode="reduce-overhead", **options)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1))


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_inference(capture: FakeCapture) -> None:
    model = make_model()
    run = compiled(model)
    kept = []
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(5, 8)
            kept.append((run(x), model(x)))
    for actual, expected in kept:
        close(actual, expected)
    assert capture.replays >= 5


@pytest.mark.fixed_sizes
def test_captures_are_told_the_bytes_of_large_tensors(capture: FakeCapture) -> None:
    run = compiled(lambda x: (x.sin() @ x, x[:2] + 1))
    with torch.no_grad():
        for _ in range(3):
            run(torch.randn(600, 600))
    (need,) = capture.needs
    assert 0 <= need - 2 * 600 * 600 * 4 < 512, "the left side and the product, not the small result"


@pytest.mark.fixed_sizes
def test_needs_of_other_sizes_are_unknown(capture: FakeCapture) -> None:
    run = compiled(lambda x: x.sin() @ x.t(), dynamic=True)
    with torch.no_grad():
        for _ in range(3):
            run(torch.randn(600, 600))
    assert capture.needs == [0]


def _train(model: nn.Module, step: Callable[[nn.Module, torch.optim.Optimizer, int], None]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(1)
    for number in range(6):
        step(model, optimizer, number)
    return [parameter.detach() for parameter in model.parameters()]


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    loss = model(torch.randn(5, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def accumulating_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    for _ in range(3):
        model(torch.randn(5, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=number % 2 == 0)


def two_forwards_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    real, fake = model(torch.randn(5, 8)), model(torch.randn(5, 8))
    optimizer.zero_grad()
    (real.square().mean() - fake.sin().mean()).backward()
    optimizer.step()


def kept_graph_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    result = model(torch.randn(5, 8))
    result.square().mean().backward(retain_graph=True)
    model(torch.randn(5, 8)).sin().mean().backward()
    result.mean().backward()
    optimizer.step()


def early_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Gradients end before the next forward."""
    optimizer.zero_grad()
    model(torch.randn(5, 8)).square().mean().backward()
    optimizer.step()


STEPS = [plain_step, accumulating_step, two_forwards_step, kept_graph_step, early_step]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("most", [0, 16 << 20], ids=["large", "small"])
def test_training(
    capture: FakeCapture,
    step: Callable[[nn.Module, torch.optim.Optimizer, int], None],
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", most)
    model = make_model()
    expected = _train(copy.deepcopy(model), step)
    close(_train(compiled(model), step), expected)
    assert counters.counts["cuda_graphs:replayed"] > 5


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_blocks_compiled_one_by_one(
    capture: FakeCapture, step: Callable[[nn.Module, torch.optim.Optimizer, int], None]
) -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*blocks)
    expected = _train(copy.deepcopy(model), step)
    for at, block in enumerate(blocks):
        model[at] = compiled(block)
    close(_train(model, step), expected)
    assert counters.counts["cuda_graphs:replayed"] > 20


def hooked_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Saved values are kept elsewhere, and one forward's without a backward."""
    kept: list[Any] = []
    written = {buffer.data_ptr() for buffer in model.buffers()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in written:
            kept.append(tensor)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(torch.randn(5, 8)).square().mean()
    before = [one.clone() for one in kept]
    model(torch.randn(5, 8))
    optimizer.zero_grad()
    loss.backward()
    model(torch.randn(5, 8)).sum()
    close(kept, before)
    optimizer.step()


def penalty_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """A backward that is differentiated, and one behind it."""
    x = torch.randn(5, 8, requires_grad=True)
    result = model(x).square().sum()
    (slope,) = torch.autograd.grad(result, x, create_graph=True)
    optimizer.zero_grad()
    (slope.square().sum() + result).backward()
    model(torch.randn(5, 8)).mean().backward()
    optimizer.step()


def kept_gradients_step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """The program keeps gradients, views of them, and what hooks get."""
    kept: list[torch.Tensor] = []
    handles = [parameter.register_hook(kept.append) for parameter in model.parameters()]
    sums: list[torch.Tensor] = []
    for _ in range(3):
        model(torch.randn(5, 8)).square().mean().backward()
        sums.append(torch.stack([parameter.grad.sum() for parameter in model.parameters()]))
        views = [parameter.grad.view(-1)[:3] for parameter in model.parameters()]
        before = [view.clone() for view in views]
        hooked = [one.clone() for one in kept]
        optimizer.zero_grad()
        model(torch.randn(5, 8)).sin().mean().backward()
        close([views, kept[: len(hooked)]], [before, hooked])
    for handle in handles:
        handle.remove()
    optimizer.step()


@pytest.mark.parametrize("step", [hooked_step, penalty_step, kept_gradients_step], ids=lambda step: step.__name__)
@pytest.mark.parametrize("statistics", [False, True], ids=["", "statistics"])
def test_training_in_other_ways(
    capture: FakeCapture, statistics: bool, step: Callable[[nn.Module, torch.optim.Optimizer, int], None]
) -> None:
    model = make_model()
    if statistics:
        model[2] = nn.BatchNorm1d(16)
    other = copy.deepcopy(model)
    expected = _train(other, step)
    close(_train(compiled(model), step), expected)
    close(list(model.buffers()), list(other.buffers()))
    assert counters.counts["cuda_graphs:replayed"] > 5


@pytest.mark.fixed_sizes  # a step with numbers for sizes has another node
def test_what_only_the_backward_reads_is_one_tensor_for_all_calls(capture: FakeCapture) -> None:
    model = make_model()
    run = compiled(model)
    seen: list[set[int]] = []
    x = torch.randn(5, 8)
    for _ in range(6):
        loss = run(x).square().mean()
        node = loss.grad_fn.next_functions[0][0].next_functions[0][0]  # type: ignore[union-attr]
        hidden = [one for one in node.record.saved(node.saved_tensors) if one.grad_fn is None]  # type: ignore[union-attr]
        seen.append({id(one) for one in hidden if not one.requires_grad})
        del hidden
        loss.backward()
    assert len(seen[-1]) > 1 and seen[-1] == seen[-2] == seen[-3]


@pytest.mark.parametrize("step", [early_step, plain_step])
def test_gradients_take_the_memory_of_saved_values(step: Any, capture: FakeCapture) -> None:
    model = compiled(make_model())
    _train(model, step)
    assert len({id(graph.pool) for graph in capture.graphs}) == (1 if step is early_step else 2)


def test_second_derivatives_past_written_statistics(capture: FakeCapture) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh())
    other = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(6):
        found = []
        x = torch.randn(9, 8)
        for call, module in ((run, model), (other, other)):
            given = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(call(given).square().sum(), given, create_graph=True)
            module(x)  # writes the statistics again
            module.zero_grad()
            slope.square().sum().backward()
            found.append([one.grad for one in module.parameters()])
        close(*found)
    close(list(model.buffers()), list(other.buffers()))


def test_buffers_are_written(capture: FakeCapture) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU())
    other = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(6):
        x = torch.randn(9, 8)
        close(run(x), other(x))
    close(list(model.buffers()), list(other.buffers()))


def test_a_written_argument(capture: FakeCapture) -> None:
    def step(x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, x)
        return cache.sum(0)

    run = compiled(step)
    cache = torch.zeros(8, 4)
    other = cache.clone()
    for number in range(8):
        if number == 5:
            cache = cache.clone()
        x, at = torch.randn(2, 4), torch.tensor([number % 4, 7 - number % 4])
        close(run(x, cache, at), step(x, other, at))
        close(cache, other)


def test_a_loop_of_generated_tokens(capture: FakeCapture) -> None:
    torch.manual_seed(0)
    embedding, head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def step(token: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = (hidden + embedding(token)).tanh()
        return head(hidden).argmax(-1), hidden

    def generate(step: Any) -> list[torch.Tensor]:
        token, hidden = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 8)
        tokens = []
        with torch.no_grad():
            for _ in range(12):
                token, hidden = step(token, hidden)
                tokens.append(token)
        return [*tokens, hidden]

    close(generate(compiled(step)), generate(step))
    assert capture.replays > 8


def test_dynamic_sizes(capture: FakeCapture) -> None:
    model = make_model()
    run = compiled(model, dynamic=True)
    with torch.no_grad():
        for size in (3, 5, 3, 5, 7, 3, 5, 7):
            x = torch.randn(size, 8)
            close(run(x), model(x))
    assert capture.captures == 3


def test_random_numbers_differ_between_replays(capture: FakeCapture) -> None:
    run = compiled(lambda x: torch.nn.functional.dropout(x, 0.5))
    results = [run(torch.ones(64)) for _ in range(5)]
    assert len({tuple(one.tolist()) for one in results}) == 5


def test_a_program_that_reads_data_says_so_once(capture: FakeCapture) -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        return (x + 1)[x > 0] * 2

    run = compiled(positive)
    with pytest.warns(RuntimeWarning, match=r"without a CUDA graph: .*waits for data.*test_recorded_programs"):
        close(run(x := torch.randn(5)), positive(x))
    for _ in range(3):
        close(run(x := torch.randn(5)), positive(x))
    assert capture.captures == 0
