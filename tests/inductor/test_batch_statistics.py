"""Batch normalisation in training, by layout: eager's vector code and its code for other layouts round differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.aot import keep_all
from stator.base.config import Options
from stator.graph.tracing.tracer import trace
from stator.pipeline import compile_graph
from stator.runtime.batch_statistics import is_as_aten

LAYOUTS: dict[str, Callable[[int], torch.Tensor]] = {
    "repeated": lambda channels: torch.randn(1, channels).expand(3, channels),
    "contiguous": lambda channels: torch.randn(7, channels, 6, 6),
    "channels last": lambda channels: torch.randn(7, channels, 6, 6).to(memory_format=torch.channels_last),
    "gaps": lambda channels: torch.randn(7, channels, 12, 6)[:, :, ::2],
    "transposed": lambda channels: torch.randn(channels, 40).t(),
}


def normalised(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    weight, bias, mean, variance = parameters
    return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, training=True, eps=1e-5)


@pytest.mark.parametrize("gap", [1, 2], ids=["weight as it is", "weight with gaps"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batch_norm_of_any_layout(layout: str, gap: int) -> None:
    """Rows that repeat have no variance: what rounds there is multiplied by 1 / sqrt(eps)."""
    torch.manual_seed(0)
    x = LAYOUTS[layout](5)
    weight, bias = torch.randn(5 * gap)[::gap], torch.randn(5)
    running = [torch.zeros(5), torch.ones(5)]
    expected_running = [one.clone() for one in running]
    expected = normalised(x, weight, bias, *expected_running)
    actual = stator.compile(normalised)(x, weight, bias, *running)
    torch.testing.assert_close([actual, *running], [expected, *expected_running], rtol=1e-6, atol=1e-6)


def test_what_statistics_are_taken_of_dies_before_them() -> None:
    """With `exact_rounding` a kernel by hand takes them: its results are not parts of what it is given."""
    if not is_as_aten():
        pytest.skip("statistics are ATen's on this processor")

    def waves(x: torch.Tensor, y: torch.Tensor, *parameters: torch.Tensor) -> Any:
        operator = torch.ops.aten._native_batch_norm_legit_functional.default
        result, *statistics = operator(torch.cat([x, y], 1), *parameters, True, 0.1, 1e-5)
        return result.sin().cos(), *statistics

    images = [torch.randn(2, 4, 64, 64) for _ in range(2)]
    given = [*images, *(torch.rand(8) for _ in range(4))]
    graph = trace(waves, given, keep=keep_all).graph
    graph.meta["part"] = "forward"  # of a training step: no arena of such sizes
    compile_graph(graph, given, options=Options(exact_rounding=True, verify=True), predict=True)
    assert graph.meta["peak"].bytes < 2.5 * sum(image.nbytes for image in images)
