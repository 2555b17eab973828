"""Batch normalisation in training, by layout: eager's vector code and its code for other layouts round differently."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_batch_norm_by_running_statistics_has_the_bits_of_eager(layout: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout](5).to(dtype)
    x[0, 0, 0], x[0, 1, 0] = (
        torch.finfo(dtype).max,
        -torch.finfo(dtype).max,
    )  # their products with 1 / deviation overflow
    mean, weight, bias = torch.randn(3, 5).to(dtype)
    mean[0], mean[1] = x[0, 0, 0, 0], x[0, 1, 0, 0]
    variance = (torch.rand(5) + 0.1).to(dtype)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, mean, variance, weight, bias)

    torch.testing.assert_close(stator.compile(program)(x), program(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", [6, 7, 56, 256, 257])
def test_statistics_of_images_are_rounded_once(width: int) -> None:
    """Rows of a few elements are added up in float32 first, which must not show beside the rounding of the results."""
    torch.manual_seed(0)
    x = (torch.randn(4, 9, 40, width) + torch.linspace(-3, 100, 9)[:, None, None]).to(memory_format=torch.channels_last)
    running = [torch.zeros(9), torch.zeros(9)]
    stator.compile(lambda x, *running: torch.nn.functional.batch_norm(x, *running, training=True, momentum=1.0))(
        x, *running
    )
    exact = torch.var_mean(x.double(), (0, 2, 3))
    torch.testing.assert_close(running[::-1], [one.float() for one in exact], rtol=3e-7, atol=1e-7)
