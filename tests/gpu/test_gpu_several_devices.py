"""Programs that use two devices, or another than the current one: forward, gradients, streams, random numbers.

The second device is another GPU if there is one, and else the CPU. Beside eager: float32, products of the same library,
‖difference‖ at most 1e-4 of ‖result‖.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import Tolerance, assert_same
from tests.gpu.device import DEVICE
from torch import nn
from torch.nn import functional as F

import stator
from stator.base import counters

CLOSE = Tolerance(1e-4, 1e-4)
MODES = ("default", "reduce-overhead")
TWO = DEVICE == "cuda" and torch.cuda.device_count() > 1
FIRST, SECOND = "cuda:0" if DEVICE == "cuda" else "cpu", "cuda:1" if TWO else "cpu"
two_gpus = pytest.mark.skipif(not TWO, reason="needs two CUDA GPUs")


class Pipeline(nn.Module):
    """Blocks on one device, then on the other, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48)).to(FIRST)
        self.second = nn.Sequential(nn.Linear(48, 32), nn.SiLU(), nn.Linear(32, 24)).to(SECOND)
        self.scale = nn.Parameter(torch.tensor(1.5))  # on the CPU

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x) * self.scale
        moved = self.second(hidden.to(SECOND)).softmax(-1)
        return x + moved.to(FIRST) * hidden.mean()


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x)).relu()
        tokens = x.flatten(2).mT.contiguous()
        return self.head(F.scaled_dot_product_attention(tokens, tokens, tokens).mean(1))


def trained(call: Callable[..., Any], model: nn.Module, x: torch.Tensor, steps: int = 3) -> list[Any]:
    """Losses and parameters of some steps of SGD."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.05), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = call(x + step).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [*found, *[one.detach().clone() for one in model.parameters()]]


def quiet(function: Callable[[], Any]) -> Any:
    """Without the remark that a program runs without a CUDA graph."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*without a CUDA graph.*")
        return function()


@pytest.mark.parametrize("mode", MODES)
def test_a_pipeline_over_two_devices(mode: str) -> None:
    torch.manual_seed(0)
    model = Pipeline()
    ours, x = copy.deepcopy(model), torch.randn(16, 24, device=FIRST)
    compiled = stator.compile(ours, fullgraph=True, mode=mode)
    with torch.no_grad():
        found = [quiet(lambda turn=turn: compiled(x * turn)) for turn in range(4)]
        assert_same(found, [model(x * turn) for turn in range(4)], CLOSE)
    assert_same(quiet(lambda: trained(compiled, ours, x)), trained(model, model, x), CLOSE)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_on_a_device_that_is_not_the_current_one(mode: str) -> None:
    torch.manual_seed(0)
    model = Vision().to(SECOND)
    ours, x = copy.deepcopy(model), torch.randn(4, 3, 8, 8, device=SECOND)
    compiled = stator.compile(ours, fullgraph=True, mode=mode)
    with torch.no_grad():
        found = [compiled(x * turn) for turn in range(4)]
        assert_same(found, [model(x * turn) for turn in range(4)], CLOSE)
    assert_same(trained(compiled, ours, x, steps=5), trained(model, model, x, steps=5), CLOSE)
    if TWO:
        assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_same_function_on_each_device(mode: str) -> None:
    """A version for each device, and each call runs on its own."""
    compiled = stator.compile(lambda x, w: (x @ w).relu().sum(-1) + x[:, 0], fullgraph=True, mode=mode)
    given = [[torch.randn(8, 8, device=device) for _ in range(2)] for device in (FIRST, SECOND)]
    before = counters.counts["graphs"]
    for turn in range(5):
        for x, w in given:
            found = compiled(x + turn, w)
            assert found.device == x.device
            assert_same(found, ((x + turn) @ w).relu().sum(-1) + x[:, 0] + turn, CLOSE)
    assert counters.counts["graphs"] - before == len({FIRST, SECOND})


def test_results_on_both_devices_with_gradients() -> None:
    """Each result leads to inputs of its own: autograd has a thread for each device."""

    def both(x: Any, y: Any) -> Any:
        return (x * 2).exp(), (y * 3).sin(), (x.to(SECOND) * y).cos()

    def gradients(call: Callable[..., Any], places: tuple[int, ...]) -> list[Any]:
        generator = torch.Generator().manual_seed(0)
        leaves = [torch.randn(4, 5, generator=generator).to(device).requires_grad_() for device in (FIRST, SECOND)]
        results = call(*leaves)
        torch.autograd.backward([results[at].sum() for at in places])
        return [leaf.grad for leaf in leaves]

    compiled = stator.compile(both, fullgraph=True)
    for _ in range(10):
        for places in ((0,), (1,), (2,), (0, 1), (0, 1, 2)):
            assert_same(gradients(compiled, places), gradients(both, places), CLOSE)


def test_a_tensor_of_the_cpu_beside_both() -> None:
    def scaled(x: Any, y: Any, scale: Any) -> Any:
        return x * scale, y * scale + 1

    compiled = stator.compile(scaled, fullgraph=True)
    x, y = torch.randn(7, device=FIRST), torch.randn(9, device=SECOND)
    for number in (2.0, 3.0):
        scale = torch.tensor(number)
        assert_same(compiled(x, y, scale), scaled(x, y, scale), CLOSE)


@two_gpus
@pytest.mark.parametrize("mode", MODES)
def test_work_waits_for_the_stream_of_its_device(mode: str) -> None:
    """The input is written behind much other work, in the current stream of the second device."""
    compiled = stator.compile(lambda x: (x * 2 + 1).sum(), fullgraph=True, mode=mode)
    large = torch.randn(4096, 4096, device=SECOND)
    stream = torch.cuda.Stream(SECOND)
    stream.wait_stream(torch.cuda.current_stream(SECOND))
    for turn in range(5):
        with torch.cuda.stream(stream):
            for _ in range(8):
                large = (large @ large).tanh()  # stays finite
            x = torch.full((512, 512), float(turn), device=SECOND) + large[:512, :512] * 0
            found = compiled(x)
        stream.synchronize()
        assert float(found) == 512 * 512 * (2.0 * turn + 1)


def test_random_numbers_belong_to_a_device() -> None:
    def dropped(x: Any, y: Any) -> Any:
        return F.dropout(x, 0.5), F.dropout(y, 0.5)

    compiled = stator.compile(dropped, fullgraph=True)
    x, y = torch.ones(4096, device=FIRST), torch.ones(4096, device=SECOND)
    torch.manual_seed(5)
    first, again = compiled(x, y), compiled(x, y)
    torch.manual_seed(5)
    repeated = compiled(x, y)
    assert_same(repeated, first, CLOSE)
    for one, other in zip(first, again, strict=True):
        assert not torch.equal(one, other)
        assert 0.4 < float((one == 0).float().mean()) < 0.6


@two_gpus
@pytest.mark.parametrize("mode", MODES)
def test_a_thread_for_each_device(mode: str) -> None:
    torch.manual_seed(0)
    models = [Vision().to(device).eval() for device in (FIRST, SECOND)]
    compiled = [stator.compile(model, fullgraph=True, mode=mode) for model in models]
    wrong: list[Any] = []

    def work(at: int, device: str) -> None:
        try:
            with torch.cuda.device(device), torch.no_grad():
                for turn in range(20):
                    x = torch.full((2, 3, 8, 8), turn / 10, device=device)
                    assert_same(compiled[at](x), models[at](x), CLOSE)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate((FIRST, SECOND))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
