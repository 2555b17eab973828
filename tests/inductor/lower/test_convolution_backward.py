"""Gradients of convolutions that are not the library's alone equal eager's, in values and layouts and either format."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from lowering_oracle import library_calls

from stator.base import counters
from stator.base.config import Options
from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import View
from stator.inductor.lower import can_lower, lower
from stator.pipeline import compile_graph
from stator.prims.layout import channels_last_strides

aten = torch.ops.aten

FORMATS = [torch.contiguous_format, torch.channels_last]
# channels, height, width, kernel, stride, padding, dilation
CASES = [
    (32, 12, 10, (7, 7), 1, 3, 1),
    (20, 9, 11, (5, 5), 2, 2, 1),
    (24, 9, 7, (3, 3), 2, 1, 1),
    (17, 8, 8, (3, 5), 1, 0, 1),
    (16, 14, 14, (5, 5), 1, 4, 2),
    (48, 6, 6, (1, 1), 1, 0, 1),
    (16, 20, 20, (17, 17), 1, 8, 1),
]


@pytest.mark.each_pair
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("formats", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (True, True, False)])
def test_depthwise(case: Sequence, formats: Sequence[int], wanted: Sequence[bool]) -> None:
    torch.manual_seed(0)
    channels, height, width, kernel, stride, padding, dilation = case
    x = torch.randn(2, channels, height, width).contiguous(memory_format=FORMATS[formats[0]])
    weight = torch.randn(channels, 1, *kernel)
    y = torch.conv2d(x, weight, None, stride, padding, dilation, channels)
    grad = torch.randn(y.shape).contiguous(memory_format=FORMATS[formats[1]])

    compare(grad, x, weight, stride, padding, dilation, channels, wanted)


# layouts of input and gradient, and which of the gradients of input, weight and bias are asked for
FORMATS_AND_GRADIENTS = [
    ((0, 0), (True, True, True)),
    ((0, 0), (True, False, False)),
    ((1, 1), (True, True, True)),
    ((1, 1), (False, True, True)),
    ((1, 0), (False, True, False)),
]


def compare(grad, x, weight, stride, padding, dilation, groups, wanted) -> None:
    counters.clear()

    def function(grad, x, weight):
        pairs = [[stride] * 2, [padding] * 2, [dilation] * 2]
        sizes = [weight.shape[0]]
        found = aten.convolution_backward(grad, x, weight, sizes, *pairs, False, [0, 0], groups, list(wanted))
        return tuple(part for part in found if part is not None)

    traced = trace(function, [grad, x, weight], keep=can_lower)
    compiled = compile_graph(traced.graph, [grad, x, weight], options=Options(verify=True))
    expected = function(grad, x, weight)
    actual = compiled(grad, x, weight)
    torch.testing.assert_close(tuple(actual), expected, rtol=1e-4, atol=1e-3)
    assert [part.stride() for part in actual] == [part.stride() for part in expected]


@pytest.mark.parametrize(("formats", "wanted"), FORMATS_AND_GRADIENTS)
@pytest.mark.parametrize("stride", [2, 3])
def test_one_tap_that_skips_positions(formats: Sequence[int], wanted: Sequence[bool], stride: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 12, 9, 10).contiguous(memory_format=FORMATS[formats[0]])
    weight = torch.randn(20, 12, 1, 1)
    y = torch.conv2d(x, weight, None, stride)
    grad = torch.randn(y.shape).contiguous(memory_format=FORMATS[formats[1]])
    compare(grad, x, weight, stride, 0, 1, 1, wanted)


def test_one_tap_that_skips_positions_of_channels_last_images_is_a_product() -> None:
    x, grad = torch.randn(2, 12, 9, 10), torch.randn(2, 20, 5, 5)
    weight, given = torch.randn(20, 12, 1, 1), [one.contiguous(memory_format=FORMATS[1]) for one in (grad, x)]
    rest = [None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]]

    def function(grad, x, weight):
        return aten.convolution_backward(grad, x, weight, *rest)[:2]

    lowered = lower(trace(function, [*given, weight], keep=can_lower).graph)
    assert aten.convolution_backward.default not in [call.target for call in library_calls(lowered)]


@pytest.mark.parametrize(("formats", "wanted"), FORMATS_AND_GRADIENTS)
@pytest.mark.parametrize("batch", [1, 3])
def test_one_tap_on_single_positions(formats: Sequence[int], wanted: Sequence[bool], batch: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(batch, 24, 1, 1).contiguous(memory_format=FORMATS[formats[0]])
    grad = torch.randn(batch, 40, 1, 1).contiguous(memory_format=FORMATS[formats[1]])
    compare(grad, x, torch.randn(40, 24, 1, 1), 1, 0, 1, 1, wanted)
    assert not any("convolution_backward" in name for name in counters.counts)


@pytest.mark.parametrize(("formats", "wanted"), FORMATS_AND_GRADIENTS)
@pytest.mark.parametrize(("channels", "out", "size", "kernel"), [(24, 40, 26, 2), (3, 32, 64, 8), (40, 40, 26, 5)])
def test_patches(formats, wanted, channels: int, out: int, size: int, kernel: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, channels, size, size).contiguous(memory_format=FORMATS[formats[0]])
    weight = torch.randn(out, channels, kernel, kernel)
    y = torch.conv2d(x, weight, None, kernel)
    grad = torch.randn(y.shape).contiguous(memory_format=FORMATS[formats[1]])
    compare(grad, x, weight, kernel, 0, 1, 1, wanted)
    assert not any("convolution_backward" in name for name in counters.counts)


# batch, channels, out, size, kernel, stride, padding, dilation
FEW_WINDOWS = [
    (2, 96, 160, (7, 7), (3, 3), 1, 1, 1),
    (1, 130, 70, (9, 12), (3, 5), 2, 1, 1),
    (1, 64, 80, (10, 11), (3, 3), 1, 0, 2),
    (3, 200, 128, (7, 6), (1, 3), 1, 0, 1),
]


@pytest.mark.each_pair
@pytest.mark.parametrize(("formats", "wanted"), FORMATS_AND_GRADIENTS)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("case", FEW_WINDOWS)
def test_more_weights_than_windows(formats, wanted, weight_format: torch.memory_format, case: Sequence) -> None:
    torch.manual_seed(0)
    batch, channels, out, size, kernel, stride, padding, dilation = case
    x = torch.randn(batch, channels, *size).contiguous(memory_format=FORMATS[formats[0]])
    weight = torch.randn(out, channels, *kernel).contiguous(memory_format=weight_format)
    y = torch.conv2d(x, weight, None, stride, padding, dilation)
    grad = torch.randn(y.shape).contiguous(memory_format=FORMATS[formats[1]])
    compare(grad, x, weight, stride, padding, dilation, 1, wanted)
    if wanted == (False, True, False):
        assert not any("convolution_backward" in name for name in counters.counts)


def test_large_depthwise_kernels_do_not_call_the_library_for_weights() -> None:
    test_depthwise(CASES[0], (1, 1), (False, True, False))
    assert not any("convolution_backward" in name for name in counters.counts)


@pytest.mark.parametrize(("formats", "wanted"), FORMATS_AND_GRADIENTS)
def test_kernels_of_several_taps_on_images_of_one_channel(formats, wanted) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1, 20, 16).contiguous(memory_format=FORMATS[formats[0]])
    weight = torch.randn(24, 1, 3, 3)
    grad = torch.randn(2, 24, 10, 8).contiguous(memory_format=FORMATS[formats[1]])
    compare(grad, x, weight, 2, 1, 1, 1, wanted)


def test_a_channels_last_gradient_is_not_copied_by_the_library() -> None:
    """It is where the kernel or the images are in another format."""
    x, kernel, depthwise = torch.randn(2, 1, 20, 16), torch.randn(24, 1, 3, 3), torch.randn(24, 1, 3, 3)
    between, grad = (torch.randn(2, 24, 10, 8).contiguous(memory_format=FORMATS[1]) for _ in range(2))

    def function(grad, x, kernel, between, depthwise):
        sizes = [1, 1], False, [0, 0]
        of_between = aten.convolution_backward(
            grad, between, depthwise, None, [1, 1], [1, 1], *sizes, 24, [True, False, False]
        )[0]
        of_first = torch.where(between > 0, of_between, 0.0)
        return aten.convolution_backward(of_first, x, kernel, None, [2, 2], [1, 1], *sizes, 1, [False, True, False])[1]

    traced = trace(lambda *given: (function(*given),), [grad, x, kernel, between, depthwise], keep=can_lower)
    lowered = lower(traced.graph)
    calls = library_calls(lowered)
    assert len(calls) == 2
    for call in calls:
        for argument in call.args[:3]:
            layout = argument.layout if isinstance(argument, View) else lowered.buffers[argument].layout
            assert layout.stride == channels_last_strides(layout.size)
