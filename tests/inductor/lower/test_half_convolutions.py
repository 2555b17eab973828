"""Convolutions in half floats: oneDNN gets images in NHWC, kernels of one tap and patches become products; results and
gradients equal eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tests.differential import NARROW, assert_same
from tests.inductor.lower.lowering_oracle import library_calls, lowered_of
from torch import nn
from torch.nn.functional import conv2d

import stator
from stator.inductor.buffers import Layout
from stator.prims.layout import channels_last_strides
from stator.prims.onednn import is_half_float

HALVES = [
    pytest.param(dtype, marks=pytest.mark.skipif(not is_half_float(dtype), reason="oneDNN lacks it here"))
    for dtype in (torch.bfloat16, torch.float16)
]

MODULES: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Conv2d(24, 32, 3, padding=1),
    "strided": lambda: nn.Conv2d(24, 32, 3, stride=2, padding=1, bias=False),
    "one tap": lambda: nn.Conv2d(24, 40, 1),
    "one tap, strided": lambda: nn.Conv2d(24, 40, 1, stride=2, bias=False),
    "depthwise": lambda: nn.Conv2d(24, 24, 5, padding=2, groups=24),
    "groups": lambda: nn.Conv2d(24, 48, 3, padding=1, groups=3),
    "dilated": lambda: nn.Conv2d(24, 16, 3, padding=2, dilation=2),
    # oneDNN 3.12 gives wrong sums for patches of 4 by 4 and 16 or 24 channels in bfloat16, where the processor has AMX
    "patches": lambda: nn.Conv2d(24, 128, 5, stride=5),
    "transposed": lambda: nn.ConvTranspose2d(24, 16, 2, stride=2),
    "one position": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 8, 1), nn.SiLU()),
    "block": lambda: nn.Sequential(
        nn.Conv2d(24, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 24, 1)
    ),
}


@pytest.mark.parametrize("freezing", [False, True], ids=["inputs", "frozen"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODULES)
def test_results_equal_eager(name: str, dtype: torch.dtype, freezing: bool) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().eval().to(dtype)
    compiled = stator.compile(module, fullgraph=True, options={"freezing": freezing})
    for batch, memory_format in ((2, torch.contiguous_format), (1, torch.channels_last)):
        x = torch.randn(batch, 24, 16, 20).to(dtype, memory_format=memory_format)
        with torch.no_grad():
            assert_same(compiled(x), module(x), NARROW)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODULES)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    """Within 2 % of the largest gradient in float64. Eager's own are up to 5 % away."""
    torch.manual_seed(0)
    module = MODULES[name]().to(dtype)
    x = torch.randn(2, 24, 16, 20).to(dtype)
    found = []
    for computed, own in ((torch.float64, copy.deepcopy(module).double()), (dtype, module)):
        rows = x.to(computed).requires_grad_()
        result = (own if own is not module else stator.compile(module, fullgraph=True))(rows)
        seeds = (torch.arange(result.numel()) % 5 - 2).view(result.shape).to(computed)
        found.append(torch.autograd.grad(result, [rows, *own.parameters()], seeds))
    for actual, expected in zip(found[1], found[0], strict=True):
        scale = max(expected.abs().max().item(), 1)
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=2e-2 * scale)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_library_gets_the_channels_last_format(dtype: torch.dtype) -> None:
    inputs = (torch.randn(1, 64, 8, 8).to(dtype), torch.randn(512, 64, 3, 3).to(dtype))
    (call,) = library_calls(lowered_of(lambda x, w: conv2d(x.relu(), w, padding=1) + 1, inputs))
    lowered = lowered_of(lambda x, w: conv2d(x.relu(), w, padding=1) + 1, inputs)
    for argument in call.args[:2]:
        layout: Layout = lowered.buffers[argument].layout if isinstance(argument, str) else argument.layout
        assert layout.stride == channels_last_strides(layout.size)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["one tap", "patches", "one position"])
def test_products_replace_convolutions(name: str, dtype: torch.dtype) -> None:
    module = MODULES[name]().eval().to(dtype)
    x, parameters = torch.randn(2, 24, 16, 20).to(dtype), dict(module.named_parameters())

    def function(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (x,))

    calls = library_calls(lowered_of(function, (x, *parameters.values())))
    assert [call.target for call in calls] == [torch.ops.aten.addmm.out]


@pytest.mark.parametrize("dtype", HALVES)
def test_onednn_may_be_disabled(dtype: torch.dtype) -> None:
    module = MODULES["block"]().eval().to(dtype)
    x = torch.randn(2, 24, 16, 20).to(dtype)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        assert_same(stator.compile(module, fullgraph=True)(x), module(x), NARROW)
