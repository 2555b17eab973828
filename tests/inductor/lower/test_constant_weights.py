"""Products and convolutions with frozen weights, by each library, compute what eager computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.differential import FUSED, NARROW, assert_same
from torch import nn

import stator
from stator.base import counters
from stator.inductor.lower import constant_weights, direct_convolution
from stator.runtime import packed_products

LIBRARIES = ("blas", "onednn", "mkl")


@pytest.fixture(autouse=True)
def _by_libraries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for tiles in ("_TILES", "_DEPTHWISE_TILES"):
        monkeypatch.setattr(direct_convolution, tiles, {})


SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 4.5, -4.5, 0.3])


class Rows(nn.Module):
    """A weight that lies by rows, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(96, 160)), nn.Parameter(torch.randn(160))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, 96), self.weight).view(*x.shape[:-1], 160)


class Part(nn.Module):
    """Views of one weight, at offsets and with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(200, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.weight[8:136, 32:], self.weight[40:168, :96]
        return torch.relu(x @ first.t()) @ second + (x @ second.t())[:, :96]


MODULES: dict[str, Callable[[], nn.Module]] = {
    "bias": lambda: nn.Linear(96, 160),
    "no bias": lambda: nn.Linear(96, 160, bias=False),
    "bias in loops": lambda: nn.Sequential(nn.Linear(96, 160), nn.GELU(), nn.Linear(160, 32)),
    "by rows": Rows,
    "parts": Part,
}


@pytest.mark.fixed_sizes  # MKL packs a weight for a number of rows
@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products(
    make: Callable[[], nn.Module], library: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library not in packed_products.implementations(dtype, rows_are_known=True):
        pytest.skip(f"this build has no {library} for {dtype}")
    monkeypatch.setattr(constant_weights, "quickest_product", lambda *_: library)
    model = make().eval().to(dtype)
    frozen = stator.freeze(model, fullgraph=True)
    tolerance = FUSED if dtype is torch.float32 else NARROW
    before = counters.counts[f"packed:{library}"]
    for shape in ((64, 96), (33, 96)):
        x = torch.randn(shape, dtype=dtype)
        with torch.no_grad():
            assert_same(frozen(x), model(x), tolerance)
    assert (counters.counts[f"packed:{library}"] > before) == (library != "blas")


@pytest.mark.parametrize("library", LIBRARIES)
def test_kernels_of_one_tap(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library not in packed_products.implementations(torch.float32, rows_are_known=True):
        pytest.skip(f"this build has no {library}")
    monkeypatch.setattr(constant_weights, "quickest_product", lambda *_: library)
    model = nn.Sequential(nn.Conv2d(24, 48, 1), nn.ReLU(), nn.Conv2d(48, 24, 1), nn.SiLU()).eval()
    x = torch.randn(2, 24, 12, 12)
    with torch.no_grad():
        assert_same(stator.freeze(model)(x), model(x), FUSED)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.ReLU6(), nn.Hardsigmoid(), nn.Hardswish(), nn.SiLU(), nn.Sigmoid(), nn.Tanh()],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("taps", [1, 3])
def test_activations_of_special_numbers(activation: nn.Module, taps: int) -> None:
    """The numbers come from the bias, so that each pixel has them all."""
    convolution = nn.Conv2d(16, len(SPECIAL), taps, padding=taps // 2)
    with torch.no_grad():
        convolution.weight.zero_()
        convolution.bias.copy_(SPECIAL)
    model = nn.Sequential(convolution, activation).eval()
    x = torch.randn(1, 16, 24, 24)
    with torch.no_grad():
        assert_same(stator.freeze(model)(x), model(x), FUSED)


def test_result_with_several_readers() -> None:
    """An activation is no part of a convolution whose result others read."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(8, 16, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            y = self.convolution(x)
            z = torch.sigmoid(self.convolution(x + 1))
            return torch.tanh(y), y + 1, z * z

    model = Both().eval()
    x = torch.randn(2, 8, 20, 20)
    with torch.no_grad():
        assert_same(stator.freeze(model)(x), model(x), FUSED)


def test_packed_weight_of_another_number_of_rows_shows() -> None:
    """MKL's product would multiply by the original weight, of which only the sizes are kept."""
    if "mkl" not in packed_products.implementations(torch.float32, rows_are_known=True):
        pytest.skip("this build has no MKL")
    weight = torch.randn(32, 64)
    packed, shape = packed_products.packed_weight("mkl", 8, weight), packed_products.without_data(weight)
    product = torch.ops.mkl._mkl_linear
    torch.testing.assert_close(product(x := torch.randn(8, 64), packed, shape, None, 8), x @ weight.t())
    assert product(torch.randn(4, 64), packed, shape, None, 8).isnan().all()
