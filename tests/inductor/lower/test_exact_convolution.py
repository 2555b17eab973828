"""Under `exact_rounding`, convolutions with one kernel for each channel: eager's bits, and what stays called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.threads import threads
from torch.nn import functional as F

import stator
from stator.base import counters
from stator.runtime import pointwise, single_positions
from stator.runtime.depthwise import Shape, agreeing
from stator.runtime.single_positions import Sizes

OPTIONS = {"exact_rounding": True, "verify": True}
WHAT = ("forward", "data", "weight")
USUAL = Shape(2, 48, (30, 30), (3, 3), (1, 1), (1, 1))


def gradients(function: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    leaves = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in tensors]
    result = function(*leaves)
    result.backward(torch.linspace(-1, 1, result.numel()).view(result.shape).sin())
    return [result.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[misc]


def same_bits(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(
        a.stride() == e.stride() and torch.equal(a.view(torch.int32), e.view(torch.int32))
        for a, e in zip(actual, expected, strict=True)
    )


def compiled(function: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    stator.reset()
    counters.clear()
    return gradients(stator.compile(function, options=OPTIONS, fullgraph=True), *tensors)


def depthwise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.relu(x), weight, None, 1, 1, 1, x.shape[1]) * 2


def called(name: str) -> int:
    return counters.counts[f"inductor_fallback:aten.{name}.default"]


@pytest.mark.skipif(any(agreeing(what, USUAL) is None for what in WHAT), reason="oneDNN adds up otherwise here")
def test_forward_and_gradients_are_kernels() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 48, 30, 30), torch.randn(48, 1, 3, 3)
    assert same_bits(compiled(depthwise, x, weight), gradients(depthwise, x, weight))
    assert not called("convolution") and not called("convolution_backward")


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("side", [7, 14, 33, 64])
def test_bits_of_forward_and_gradients(side: int, kernel: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 24, side, side), torch.randn(24, 1, kernel, kernel)

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight, None, 2, kernel // 2, 1, 24) + 1

    assert same_bits(compiled(function, x, weight), gradients(function, x, weight))


def in_groups(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.conv2d(F.relu(x), weight, None, 2, 1, 1, x.shape[1] // 8) * 2


@pytest.mark.skipif(
    any(agreeing(what, Shape(2, 48, (30, 30), (3, 3), (2, 2), (1, 1), 8)) is None for what in WHAT),
    reason="oneDNN adds up otherwise here",
)
def test_groups_of_eight_are_kernels() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 48, 30, 30), torch.randn(48, 8, 3, 3)
    assert same_bits(compiled(in_groups, x, weight), gradients(in_groups, x, weight))
    assert not called("convolution") and not called("convolution_backward")


def points_agree(stride: int) -> bool:
    with threads(2):
        of = Shape(2, 24, (30, 30), (1, 1), (stride, stride), (0, 0), 24, 40)
        return all(pointwise.agreeing(what, of) for what in WHAT[:2])


@pytest.mark.parametrize("stride", [1, 2])
def test_points_are_kernels_but_for_the_gradient_of_the_weight(stride: int) -> None:
    if not points_agree(stride):
        pytest.skip("oneDNN adds up otherwise here")

    def of_points(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.relu(x), weight, None, stride) * 2

    torch.manual_seed(0)
    x, weight = torch.randn(2, 24, 30, 30), torch.randn(40, 24, 1, 1)
    with threads(2):
        assert same_bits(compiled(of_points, x, weight), gradients(of_points, x, weight))
        assert not called("convolution")
        assert same_bits(compiled(lambda x: of_points(x, weight), x), gradients(lambda x: of_points(x, weight), x))
        assert not called("convolution_backward")


def squeezed(x: torch.Tensor, first: torch.Tensor, bias: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    means = x.mean((2, 3), keepdim=True)
    return x * F.conv2d(F.relu(F.conv2d(means, first, bias)), second).sigmoid()


def of_squeezed() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(2, 24, 9, 9), torch.randn(8, 24, 1, 1), torch.randn(8), torch.randn(24, 8, 1, 1)


def single_positions_agree() -> bool:
    asked = (True, True, True)
    with threads(2):
        found = [single_positions.agreeing(what, Sizes(2, 24, 8), asked) for what in ("data", "weight", "bias")]
        found += [single_positions.agreeing("biased", Sizes(2, 24, 8))]
        found += [single_positions.agreeing("forward", Sizes(2, 8, 24))]
        found += [single_positions.agreeing(what, Sizes(2, 8, 24), (True, True, False)) for what in WHAT[1:]]
    return all(found)


def test_single_positions_are_kernels() -> None:
    if not single_positions_agree():
        pytest.skip("oneDNN adds up otherwise here")
    with threads(2):
        assert same_bits(compiled(squeezed, *of_squeezed()), gradients(squeezed, *of_squeezed()))
    assert not called("convolution") and not called("convolution_backward")


@pytest.mark.parametrize("count", [1, 2])
def test_bits_of_single_positions_in_channels_last(count: int) -> None:
    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return squeezed(x.to(memory_format=torch.channels_last), *weights).contiguous()

    with threads(count):
        assert same_bits(compiled(function, *of_squeezed()), gradients(function, *of_squeezed()))


@pytest.mark.parametrize("groups", [1, 2])
def test_bits_of_transposed_ones_and_of_groups_of_single_positions(groups: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 8, 1, 1), torch.randn(8, 8 // groups, 1, 1)

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv_transpose2d(x, weight, groups=groups) + F.conv2d(x, weight, groups=groups)

    with threads(2):
        assert same_bits(compiled(function, x, weight), gradients(function, x, weight))


def test_only_the_gradient_that_is_wanted() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 24, 20, 20), torch.randn(24, 1, 3, 3)
    assert same_bits(compiled(lambda w: depthwise(x, w), weight), gradients(lambda w: depthwise(x, w), weight))
    assert same_bits(compiled(lambda x: depthwise(x, weight), x), gradients(lambda x: depthwise(x, weight), x))


def small_network(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return depthwise(F.conv2d(x, first, None, 2, 2, 1, x.shape[1]), second)


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 24, 57, 57), torch.randn(24, 1, 5, 5), torch.randn(24, 1, 3, 3)


@pytest.mark.parametrize("order", [(1, 2, 1), (2, 1, 2)], ids=str)
def test_the_number_of_threads_changes_after_compilation(order: tuple[int, ...]) -> None:
    stator.reset()
    step = stator.compile(small_network, options=OPTIONS, fullgraph=True)
    for count in order:
        with threads(count):
            assert same_bits(gradients(step, *operands()), gradients(small_network, *operands()))


@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["on then off", "off then on"])
def test_onednn_is_switched_after_compilation(order: tuple[bool, ...]) -> None:
    stator.reset()
    step = stator.compile(small_network, options=OPTIONS, fullgraph=True)
    for enabled in order:
        with torch.backends.mkldnn.flags(enabled=enabled):
            assert same_bits(gradients(step, *operands()), gradients(small_network, *operands()))


def test_sizes_that_vary() -> None:
    stator.reset()
    step = stator.compile(depthwise, options=OPTIONS, fullgraph=True)
    for side in (20, 23, 31, 40):
        torch.manual_seed(0)
        x, weight = torch.randn(2, 24, side, side + 1), torch.randn(24, 1, 3, 3)
        assert same_bits(gradients(step, x, weight), gradients(depthwise, x, weight))


OTHERS = {
    "groups of two": lambda x, w: F.conv2d(x, w.view(24, 2, 3, 3), None, 1, 1, 1, 12),
    "groups of eight to four": lambda x, w: F.conv2d(x, w[:12].repeat(1, 8, 1, 1), None, 1, 1, 1, 3),
    "two kernels for a channel": lambda x, w: F.conv2d(x, w.view(48, 1, 3, 3), None, 1, 1, 1, 24),
    "dilated": lambda x, w: F.conv2d(x, w[:24], None, 1, 2, 2, 24),
    "with a bias": lambda x, w: F.conv2d(x, w[:24], w[24:].flatten()[:24], 1, 1, 1, 24),
    "transposed": lambda x, w: F.conv_transpose2d(x, w[:24], None, 1, 1, 0, 24),
    "channels last": lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w[:24], None, 1, 1, 1, 24),
    "of gaps": lambda x, w: F.conv2d(x[:, :, ::2], w[:24], None, 1, 1, 1, 24),
    "in double precision": lambda x, w: F.conv2d(x.double(), w[:24].double(), None, 1, 1, 1, 24).float(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions_keep_their_bits(name: str) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 24, 20, 20), torch.randn(48, 1, 3, 3)
    function = OTHERS[name]
    assert same_bits(compiled(function, x, weight), gradients(function, x, weight))
