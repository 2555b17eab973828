"""Which blocks the rules give the kernels of graphs whose tensors claim to be on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.inductor.claimed_gpu import scheduled_on_gpu

from stator.inductor.codegen.kernel import merge
from stator.inductor.codegen.triton.access_patterns import crossing_loops
from stator.inductor.codegen.triton.blocks import Blocks, choose_blocks
from stator.inductor.codegen.triton.expressions import TritonIndexPrinter
from stator.inductor.schedule.groups import Group

pytestmark = pytest.mark.fixed_sizes


def kernels(function: Callable[..., Any], *tensors: torch.Tensor) -> list[tuple[Any, Blocks]]:
    found, lowered = scheduled_on_gpu(function, tensors)
    groups = [step for step in found.steps if isinstance(step, Group)]
    merged = [merge(group, lowered.buffers, lowered.sizes, TritonIndexPrinter) for group in groups]
    return [(kernel, choose_blocks(kernel)) for kernel in merged]


def test_tile_where_buffers_are_contiguous_along_two_loops():
    ((kernel, blocks),) = kernels(lambda x, y: x + y.t(), torch.empty(128, 128), torch.empty(128, 128))
    assert crossing_loops(kernel) == (0, 1)
    assert (blocks.x_block, blocks.r_block) == (64, 64)


def test_no_tile_for_values_of_rows():
    """They are contiguous along another loop than the images, but do not walk through the positions."""

    def function(x, centers, scales):
        return (x - centers[:, :, None, None]) * scales[:, :, :, None]

    x = torch.empty(8, 32, 40, 4096)
    ((kernel, blocks),) = kernels(function, x, torch.empty(8, 32), torch.empty(8, 32, 40))
    assert crossing_loops(kernel) is None
    assert blocks.r_block == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_of_nhwc_images_reads_neighbouring_channels(dtype):
    def function(x, weight, bias):
        return torch.group_norm(x, 32, weight, bias)

    x = torch.empty(16, 320, 16, 16, dtype=dtype).to(memory_format=torch.channels_last)
    found = kernels(function, x, torch.empty(320, dtype=dtype), torch.empty(320, dtype=dtype))
    kernel, blocks = found[0]
    assert kernel.typical[blocks.x_loops[-1]] == 320
    assert blocks.x_block >= 16
    assert found[-1][1].r_block == 1


@pytest.mark.parametrize(("taps", "rows", "each"), [(3, 3, 2), (5, 1, 4), (7, 1, 2)])
def test_sums_of_depthwise_taps_fit_in_registers(taps, rows, each):
    def function(grad, x, weight):
        rest = ([1, 1], [taps // 2] * 2, [1, 1], False, [0, 0], 64, [False, True, False])
        return torch.ops.aten.convolution_backward(grad, x, weight, None, *rest)[1]

    images = torch.empty(16, 64, 56, 56, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    found = kernels(function, images, images, torch.empty(64, 1, taps, taps, dtype=torch.bfloat16))
    kernel, blocks = found[0]
    loads = [value for value in kernel.values if value.name == "load"]
    assert len(loads) == 8 + rows * (8 + taps - 1), "an element is loaded once for all taps of a row"
    assert blocks.x_block * blocks.r_block == each * 32 * blocks.warps


@pytest.mark.parametrize(
    ("channels", "side", "blocks", "warps"), [(144, 56, (16, 32), 4), (240, 28, (16, 1024), 16), (1152, 7, (64, 64), 8)]
)
def test_means_of_depthwise_convolutions_have_few_elements_for_a_thread(channels, side, blocks, warps):
    def function(x, weight):
        y = torch.nn.functional.silu(torch.nn.functional.conv2d(x, weight, padding=2, groups=channels))
        return y, y.mean((2, 3))

    x = torch.empty(32, channels, side, side, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    weight = torch.empty(channels, 1, 5, 5, dtype=torch.bfloat16)
    _, chosen = max(kernels(function, x, weight), key=lambda one: len(one[0].values))
    assert ((chosen.x_block, chosen.r_block), chosen.warps) == (blocks, warps)
