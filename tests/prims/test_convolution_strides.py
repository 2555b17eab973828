"""The strides of a convolution's gradients are eager's, also where a weight is in two memory formats at once."""

import itertools
from typing import Any

import pytest
import torch

import stator
from stator.prims.shape_rules.neural_networks.convolution import convolution, convolution_backward

FORMATS = ("contiguous", "channels_last")
CHANNELS = ((1, 1, 4), (4, 4, 4), (2, 4, 4), (1, 3, 1))  # groups, in, out
KERNELS = ((3, 3), (1, 1), (1, 3))


def filled(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> torch.Tensor:
    """Strides that say the format, also where the sizes leave it open."""
    _, channels, height, width = shape
    strides = (channels * height * width, height * width, width, 1)
    if layout == "channels_last":
        strides = (height * width * channels, 1, width * channels, channels)
    generator = torch.Generator().manual_seed(0)
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(torch.randn(shape, generator=generator))


@pytest.mark.each_pair
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradients_have_eagers_strides(
    dtype: torch.dtype, channels: tuple[int, int, int], kernel: tuple[int, int]
) -> None:
    groups, inner, outer = channels
    for batch, layouts in itertools.product((1, 2), itertools.product(FORMATS, repeat=3)):
        gradient = filled((batch, outer, 7 - kernel[0], 7 - kernel[1]), dtype, layouts[0])
        input = filled((batch, inner, 6, 6), dtype, layouts[1])
        weight = filled((outer, inner // groups, *kernel), dtype, layouts[2])
        options = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups, [True, True, False])
        found = convolution_backward(gradient, input, weight, *options)
        expected = torch.ops.aten.convolution_backward(gradient, input, weight, [0], *options[1:])
        for ours, eagers in zip(found[:2], expected[:2], strict=True):
            assert ours is not None and tuple(ours.stride) == eagers.stride(), (batch, layouts)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_volumes_in_training_are_in_channels_last(backend: str) -> None:
    """By oneDNN, which recurrent layers are traced without."""

    def seen(call: Any) -> list[tuple[int, ...]]:
        volume = torch.randn(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d).requires_grad_()
        weight = torch.randn(4, 3, 2, 2, 2, requires_grad=True)
        result = call(volume, weight)
        gradients = torch.autograd.grad(result.sum(), (volume, weight))
        return [tensor.stride() for tensor in (result, *gradients)]

    compiled = stator.compile(torch.nn.functional.conv3d, backend=backend)
    assert seen(compiled) == seen(torch.nn.functional.conv3d)


@pytest.mark.parametrize("shape", [(2, 1, 16), (2, 3, 1), (1, 1, 5), (2, 3, 5)], ids=str)
def test_results_of_sequences_have_eagers_strides(shape: tuple[int, int, int]) -> None:
    """Strides of sizes of one, which contiguity ignores, can make a contiguous sequence look like channels last."""
    weight = torch.randn(4, shape[1], 1)
    for strides in itertools.product((1, 3, 5, 15, 16), repeat=3):
        if strides[2] * (shape[2] - 1) < 16:
            input = torch.randn(100).as_strided(shape, strides)
            found = convolution(input, weight, None, [1], [0], [1], False, [0], 1)
            expected = torch.nn.functional.conv1d(input, weight)
            assert tuple(found.stride) == expected.stride(), strides
