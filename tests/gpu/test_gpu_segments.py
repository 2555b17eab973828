"""Steps of programs that are launched as graphs in default mode, beside eager: changing inputs, parameters that are
written and replaced, streams, threads, recordings, training."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.device import DEVICE, only_cuda

import stator
from stator.runtime.cuda import driver, segments

pytestmark = only_cuda


class Blocks(torch.nn.Module):
    """Attention between products and norms, as in a transformer."""

    def __init__(self, layers: int = 3, width: int = 64) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    "norm": torch.nn.LayerNorm(width),
                    "qkv": torch.nn.Linear(width, 3 * width),
                    "out": torch.nn.Linear(width, width),
                    "up": torch.nn.Linear(width, 4 * width),
                    "down": torch.nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["norm"](x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
            x = x + layer["out"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            x = x + layer["down"](F.gelu(layer["up"](F.layer_norm(x, (64,)))))
        return x


def pair(**options: Any) -> tuple[torch.nn.Module, Any]:
    model = Blocks().to(DEVICE).bfloat16()
    return model, stator.compile(copy.deepcopy(model), **options)


def given(rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, 32, 64, device=DEVICE).bfloat16()


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=5e-2, atol=5e-2)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The segments that are made."""
    made: list[Any] = []
    extension = driver.open_driver()
    usual = extension.Segment

    class Noted:
        def __getattr__(self, name: str) -> Any:
            return getattr(extension, name)

        def Segment(self, *args: Any) -> Any:
            made.append(usual(*args))
            return made[-1]

    noted = Noted()
    monkeypatch.setattr(segments.driver, "open_driver", lambda: noted)
    return made


def test_inputs_and_results_change(graphs: list[Any]) -> None:
    model, compiled = pair()
    kept = []
    with torch.no_grad():
        for _ in range(12):
            x = given()
            kept.append((compiled(x), model(x)))
            close(*kept[-1])
    for actual, expected in kept:
        close(actual, expected)
    assert len(graphs) >= 2  # attention is a launch, which ends no segment


def test_parameters_are_written_and_replaced() -> None:
    model, compiled = pair()
    x = given()
    with torch.no_grad():
        for turn in range(12):
            for one, other in zip(model.parameters(), compiled.parameters(), strict=True):
                one.add_(0.01 * turn)
                if turn % 4 == 3:
                    other.data = one.data.clone()  # other addresses
                else:
                    other.copy_(one)
            close(compiled(x), model(x))


def test_streams_and_threads() -> None:
    model, compiled = pair()
    wrong: list[Any] = []
    with torch.no_grad():
        for _ in range(4):
            compiled(given())

    def work() -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                x = given()
                actual, expected = compiled(x), model(x)
                if not torch.allclose(actual, expected, rtol=5e-2, atol=5e-2):
                    wrong.append((actual, expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_work_of_a_stream_is_waited_for() -> None:
    model, compiled = pair()
    with torch.no_grad():
        for _ in range(5):
            x = given()
            compiled(x)
        torch.cuda._sleep(20_000_000)
        x.mul_(2)
        actual = compiled(x)
        close(actual, model(x))


def test_a_program_captures_a_graph_of_its_own() -> None:
    model, compiled = pair()
    x = given()
    with torch.no_grad():
        for _ in range(5):
            compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(x)
        for _ in range(3):
            x.normal_()
            compiled(given())
            graph.replay()
            close(result, model(x))


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"mode": "reduce-overhead"}], ids=str)
def test_sizes_and_modes(options: dict[str, Any]) -> None:
    model, compiled = pair(**options)
    with torch.no_grad():
        for _ in range(4):
            for rows in (2, 3, 2, 5):
                x = given(rows)
                close(compiled(x), model(x))


def test_training() -> None:
    model, compiled = pair()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, compiled)]
    for _ in range(8):
        x, losses = given(), []
        for one, optimizer in zip((model, compiled), optimizers, strict=True):
            loss = one(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=2e-2, atol=1e-3)


def test_programs_are_freed_while_their_work_runs() -> None:
    for _ in range(5):
        model, compiled = pair()
        with torch.no_grad():
            for _ in range(5):
                x = given()
                compiled(x)
            torch.cuda._sleep(5_000_000)
            actual, expected = compiled(x), model(x)
            stator.reset()
            del compiled
            close(actual, expected)
