"""Models and helpers for tests of recorded CUDA graphs. On the CPU, a stand-in records and replays
(tests/runtime/cuda/fake_capture.py)."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE
from torch import nn

import stator
from stator import pipeline
from stator.base import counters, logs
from stator.runtime.cuda import graphs

sys.path.append(str(Path(__file__).parents[1] / "runtime" / "cuda"))


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    logs.forget_warnings()
    counters.clear()
    if DEVICE == "cpu":
        from fake_capture import FakeCapture

        capture = FakeCapture(512 << 20)
        pool, record = graphs.GraphPool(torch.device("cpu"), capture), graphs.record
        monkeypatch.setattr(pipeline, "recording_device", lambda program: pool.device)
        monkeypatch.setattr(graphs, "pool_of", lambda device: pool)
        monkeypatch.setattr(
            graphs, "record", lambda call, inputs, *rest: record(capture.watched(call, inputs.boxed), inputs, *rest)
        )
    yield
    gc.collect()


def compiled(function: Any, **options: Any) -> Any:
    return stator.compile(function, mode="reduce-overhead", **options)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def close(one: Any, other: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def replayed() -> int:
    return counters.counts["cuda_graphs:replayed"]


# ---- models with the shapes of real ones


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.inputs(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.outputs(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Language(nn.Module):
    """A small GPT: large logits."""

    def __init__(self, width: int = 256, vocabulary: int = 8192, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 4, causal=True) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def convolutions() -> nn.Module:
    def block(given: int, made: int) -> list[nn.Module]:
        return [nn.Conv2d(given, made, 3, 2, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]

    tail: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*block(3, 32), *block(32, 64), *block(64, 128), *tail)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 16)),
        lambda: randn(32, 64),
    ),
    "transformer": (lambda: nn.Sequential(*[Block(128, 4) for _ in range(3)]), lambda: randn(4, 64, 128)),
    "convolutions": (convolutions, lambda: randn(16, 3, 64, 64)),
    "language": (Language, lambda: torch.randint(8192, (4, 128), device=DEVICE)),
}


def make(name: str) -> tuple[nn.Module, nn.Module, Callable[[], torch.Tensor]]:
    """Two equal models and a source of inputs."""
    model = MODELS[name][0]().to(DEVICE)
    return model, copy.deepcopy(model), MODELS[name][1]
