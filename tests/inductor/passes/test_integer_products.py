"""Products and convolutions of dequantized numbers with frozen weights: computed with integers, as exactly as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from tests.differential import FUSED, assert_same
from torch import nn

import stator
from stator.base import counters
from stator.inductor.passes import integer_products
from stator.runtime.integer_products import multiplies_integers

pytestmark = pytest.mark.skipif(not multiplies_integers(), reason="this processor has no exact products of bytes")

quantized = torch.ops.quantized_decomposed


def requantized(x: torch.Tensor, dtype: torch.dtype, scale: float, zero_point: int) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    numbers = (scale, zero_point, limits.min, limits.max, dtype)
    return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *numbers), *numbers)


def dynamically(x: torch.Tensor) -> torch.Tensor:
    scale, zero_point = quantized.choose_qparams.tensor(x, 0, 255, 2**-12, torch.uint8)
    numbers = (scale, zero_point, 0, 255, torch.uint8)
    return quantized.dequantize_per_tensor.tensor(quantized.quantize_per_tensor.tensor(x, *numbers), *numbers)


class Quantized(nn.Module):
    """A layer with an int8 weight, and a scale for each of its channels."""

    def __init__(self, shape: tuple[int, ...], quantize: Callable[..., torch.Tensor], bias: bool = True, **window: Any):
        super().__init__()
        self.weight = nn.Buffer(torch.randint(-128, 128, shape, dtype=torch.int8))
        self.scales, self.zeros = nn.Buffer(torch.rand(shape[0]) / 100), nn.Buffer(torch.zeros(shape[0]).long())
        self.bias = nn.Parameter(torch.randn(shape[0])) if bias else None
        self.quantize, self.window = quantize, window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = quantized.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        layer = nn.functional.linear if weight.dim() == 2 else torch.conv2d
        return layer(self.quantize(x), weight, self.bias, **self.window).relu()


def as_uint8(x: torch.Tensor) -> torch.Tensor:
    return requantized(x, torch.uint8, 0.03, 117)


def as_int8(x: torch.Tensor) -> torch.Tensor:
    return requantized(x, torch.int8, 0.02, 0)


ROWS, IMAGES = (5, 7, 48), (2, 12, 9, 10)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Quantized((40, 48), as_uint8), ROWS),
    "linear, int8": (lambda: Quantized((40, 48), as_int8, bias=False), ROWS),
    "linear, dynamic": (lambda: Quantized((40, 48), dynamically), ROWS),
    "one row": (lambda: Quantized((40, 48), as_uint8), (1, 48)),
    "chain": (lambda: nn.Sequential(Quantized((40, 48), as_uint8), Quantized((24, 40), as_int8)), ROWS),
    "convolution": (lambda: Quantized((16, 12, 3, 3), as_uint8, padding=1), IMAGES),
    "strided": (lambda: Quantized((16, 12, 3, 3), as_uint8, False, stride=2, dilation=2), IMAGES),
    "depthwise": (lambda: Quantized((12, 1, 3, 3), as_uint8, padding=1, groups=12), IMAGES),
    "groups": (lambda: Quantized((18, 4, 1, 1), as_uint8, groups=3), IMAGES),
    "one position": (lambda: Quantized((18, 12, 1, 1), as_uint8), (2, 12, 1, 1)),
}


def rewritten(function: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """The result of a call, and the number of products that the graphs compiled meanwhile compute with integers."""
    found: list[Any] = []
    original = integer_products._weight

    def spy(*args: Any) -> Any:
        weight = original(*args)
        found.extend([] if weight is None else [weight])
        return weight

    monkeypatch.setattr(integer_products, "_weight", spy)
    return function(), len(found)


@pytest.mark.parametrize("name", CASES)
def test_results_equal_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    make, size = CASES[name]
    module = make().eval()
    frozen = stator.freeze(module, fullgraph=True)
    inputs = [torch.randn(size), 3 * torch.randn(size)]
    with torch.no_grad():
        result, count = rewritten(lambda: frozen(inputs[0]), monkeypatch)
        assert count == (2 if name == "chain" else 1)
        assert_same(result, module(inputs[0]), FUSED)
        assert_same(frozen(inputs[1]), module(inputs[1]), FUSED)


def test_sums_at_the_limits_are_exact() -> None:
    """A product that saturates 16 bits would be far off."""
    module = Quantized((8, 256), as_uint8, bias=False).eval()
    module.weight.fill_(-128)
    module.scales.fill_(0.5)
    with torch.no_grad():
        assert_same(stator.freeze(module)(torch.full((3, 256), 1e3)), module(torch.full((3, 256), 1e3)), FUSED)
        module.weight.fill_(127)
        assert_same(stator.freeze(module)(torch.full((3, 256), 1e3)), module(torch.full((3, 256), 1e3)), FUSED)


def _with_zero_points(module: Quantized) -> None:
    module.zeros.fill_(3)


def _not_finite(module: Quantized) -> None:
    module.scales[1] = float("inf")


def _signed(module: Quantized) -> None:
    """oneDNN's convolution takes uint8 alone."""
    module.quantize = as_int8


@pytest.mark.parametrize(
    ("change", "case"), [(_with_zero_points, "linear"), (_not_finite, "linear"), (_signed, "groups")]
)
def test_other_layers_stay_floats(
    change: Callable[[Quantized], None], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    make, size = CASES[case]
    module, x = make().eval(), torch.randn(size)
    assert isinstance(module, Quantized)
    change(module)
    with torch.no_grad():
        result, count = rewritten(lambda: stator.freeze(module, fullgraph=True)(x), monkeypatch)
        assert count == 0
        assert_same(result, module(x), FUSED)


def test_a_changed_weight_is_noticed() -> None:
    torch.manual_seed(0)
    module = Quantized((40, 48), as_uint8).eval()
    frozen, x = stator.freeze(module, fullgraph=True), torch.randn(6, 48)
    with torch.no_grad():
        frozen(x)
        module.weight.neg_()
        assert_same(frozen(x), module(x), FUSED)
        module.scales.mul_(2)
        assert_same(frozen(x), module(x), FUSED)


def test_weights_are_packed_once() -> None:
    module = Quantized((40, 48), as_uint8).eval()

    def twice(x: torch.Tensor) -> torch.Tensor:
        return module(x) + module(x * 2)

    counters.clear()
    compiled = stator.compile(twice, fullgraph=True, options={"freezing": True})
    x = torch.randn(6, 48)
    with torch.no_grad():
        assert_same(compiled(x), twice(x), FUSED)
    assert counters.counts["packed:integers"] == 1
