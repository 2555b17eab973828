"""Frozen convolutions in kernels of our own, with the loops that follow, compute what eager computes."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.differential import FUSED, assert_same
from torch import nn
from torch.nn import functional as F

import stator
from stator.base import counters
from stator.inductor.codegen import cpp
from stator.inductor.convolutions import ConvolutionTile, DirectConvolution
from stator.inductor.lower import direct_convolution, products_by_matrix
from stator.inductor.lower.builder import LoweringBuilder
from stator.runtime import packed_products
from stator.runtime.toolchain import cpu_features, float_lanes

LANES = float_lanes()
pytestmark = pytest.mark.skipif(
    LANES not in direct_convolution._TILES, reason="convolutions are the library's on this processor"
)


def check(model: nn.Module, *inputs: torch.Tensor, kernels: int = 1) -> None:
    """kernels: how many convolutions are ours."""
    model = model.eval()
    frozen = stator.freeze(model, fullgraph=True, options={"verify": True})
    before = counters.counts["packed:direct_convolution"]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that of a graph that cannot be compiled
        assert_same(frozen(*inputs), model(*inputs), FUSED)
    assert counters.counts["packed:direct_convolution"] - before == kernels


KINDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "3 x 3": (dict(in_channels=24, out_channels=64, kernel_size=3, padding=1), (2, 24, 13, 11)),
    "runs of channels": (dict(in_channels=70, out_channels=40, kernel_size=3, padding=1), (1, 70, 9, 10)),
    "channels between vectors": (dict(in_channels=7, out_channels=83, kernel_size=3), (1, 7, 9, 10)),
    "far images in groups": (
        dict(in_channels=48, out_channels=48, kernel_size=3, padding=1, stride=2, groups=2),
        (1, 48, 80, 50),
    ),
    "three channels at a time": (dict(in_channels=21, out_channels=40, kernel_size=3, padding=1), (1, 21, 9, 10)),
    "two channels at a time": (dict(in_channels=22, out_channels=24, kernel_size=1), (1, 22, 9, 10)),
    "fewer channels than lanes": (dict(in_channels=20, out_channels=10, kernel_size=3, padding=1), (2, 20, 9, 7)),
    "groups of 4": (dict(in_channels=72, out_channels=72, kernel_size=3, padding=1, groups=18), (2, 72, 9, 16)),
    "groups of 8": (
        dict(in_channels=40, out_channels=40, kernel_size=3, padding=1, stride=2, groups=5),
        (1, 40, 15, 14),
    ),
    "groups of 8, dilated": (
        dict(in_channels=32, out_channels=32, kernel_size=(1, 3), padding=(0, 2), dilation=2, groups=4),
        (2, 32, 5, 6),
    ),
    "one tap": (dict(in_channels=40, out_channels=24, kernel_size=1), (3, 40, 5, 7)),
    "one tap of each second": (dict(in_channels=40, out_channels=24, kernel_size=1, stride=2), (1, 40, 9, 8)),
    "wide tap": (dict(in_channels=16, out_channels=16, kernel_size=(1, 7), padding=(0, 3)), (1, 16, 6, 20)),
    "dilated": (dict(in_channels=16, out_channels=32, kernel_size=3, padding=2, dilation=2), (1, 16, 10, 9)),
    "large padding": (dict(in_channels=16, out_channels=48, kernel_size=2, padding=2, stride=3), (2, 16, 6, 5)),
    "images of three channels": (
        dict(in_channels=3, out_channels=32, kernel_size=7, stride=2, padding=3),
        (2, 3, 37, 30),
    ),
    "images of one channel": (dict(in_channels=1, out_channels=16, kernel_size=(3, 2), padding=(2, 0)), (1, 1, 9, 12)),
    "few channels, dilated": (
        dict(in_channels=3, out_channels=16, kernel_size=3, padding=1, dilation=2),
        (1, 3, 12, 9),
    ),
    "groups": (dict(in_channels=24, out_channels=96, kernel_size=3, groups=3, padding=1), (2, 24, 8, 9)),
    "groups of channels between vectors": (dict(in_channels=6, out_channels=60, kernel_size=3, groups=2), (1, 6, 8, 9)),
    "depthwise 3": (dict(in_channels=72, out_channels=72, kernel_size=3, groups=72, padding=1), (2, 72, 13, 15)),
    "depthwise 5": (
        dict(in_channels=40, out_channels=40, kernel_size=5, groups=40, padding=2, stride=2),
        (1, 40, 21, 40),
    ),
    "depthwise 7": (dict(in_channels=17, out_channels=17, kernel_size=7, groups=17, padding=3), (1, 17, 9, 25)),
    "depthwise, dilated": (
        dict(in_channels=64, out_channels=64, kernel_size=3, groups=64, padding=3, dilation=3),
        (2, 64, 7, 12),
    ),
    "depthwise without padding": (dict(in_channels=96, out_channels=96, kernel_size=3, groups=96), (1, 96, 9, 30)),
    "depthwise, rows shorter than a tile": (
        dict(in_channels=24, out_channels=24, kernel_size=3, groups=24, padding=1),
        (2, 24, 9, 3),
    ),
    "as text": (dict(in_channels=16, out_channels=32, kernel_size=3, padding="same"), (1, 16, 9, 12)),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("given", "shape"), KINDS.values(), ids=KINDS)
def test_kinds(given: dict[str, Any], shape: tuple[int, ...], bias: bool) -> None:
    convolution = nn.Conv2d(**given, bias=bias)
    check(nn.Sequential(convolution, nn.ReLU()), torch.randn(shape))


@pytest.fixture(params=[True, False], ids=["patches", "taps"])
def by_patches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether convolutions of 3 x 3 taps may be computed in patches."""
    if not request.param:
        monkeypatch.setattr(direct_convolution, "in_patches", lambda found, weight: [])
    return bool(request.param)


IN_PATCHES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "even sizes": (dict(in_channels=32, out_channels=64, padding=1), (1, 32, 12, 14)),
    "odd sizes": (dict(in_channels=24, out_channels=64, padding=1), (2, 24, 13, 11)),
    "without padding": (dict(in_channels=40, out_channels=32), (1, 40, 11, 12)),
    "large padding": (dict(in_channels=24, out_channels=40, padding=(2, 3)), (2, 24, 7, 8)),
    "images of two rows": (dict(in_channels=64, out_channels=32, padding=1), (3, 64, 2, 50)),
    "groups": (dict(in_channels=72, out_channels=96, padding=1, groups=3), (2, 72, 8, 9)),
    "channels between vectors": (
        dict(in_channels=LANES + 3, out_channels=5 * LANES - 2, padding=1),
        (1, LANES + 3, 9, 9),
    ),
    "a part of a vector": (dict(in_channels=32, out_channels=2 * LANES - 3, padding=1), (1, 32, 20, 18)),
    "several parts": (dict(in_channels=700, out_channels=48, padding=1), (2, 700, 15, 13)),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("given", "shape"), IN_PATCHES.values(), ids=IN_PATCHES)
def test_patches(given: dict[str, Any], shape: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[DirectConvolution] = []
    pack = direct_convolution.packed_for
    monkeypatch.setattr(
        direct_convolution, "packed_for", lambda weight, found: packed.append(found) or pack(weight, found)
    )
    convolution, x = nn.Conv2d(kernel_size=3, **given), torch.randn(shape)
    residual = torch.randn(convolution(x).shape)
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        check(Block(lambda z, y: F.hardswish(z) + y, convolution), x, residual)
    finally:
        torch.set_num_threads(usual)
    assert [found.in_patches for found in packed] == [True]


def test_first_tiles_of_each_width_keep_their_order() -> None:
    tiles = [ConvolutionTile(*tile) for tile in ((6, 64), (14, 32), (7, 64), (10, 16), (8, 32))]
    assert direct_convolution._first_of_each_width(tiles) == [tiles[0], tiles[1], tiles[3]]


@pytest.mark.fixed_sizes
def test_patches_where_they_multiply_less_often() -> None:
    def found(size: int, weight: torch.Tensor) -> list[DirectConvolution]:
        sizes, (out, channels) = (size, size), weight.shape[:2]
        one, tile = (1, 1), ConvolutionTile(6, LANES)
        taps = DirectConvolution(1, sizes, sizes, channels, out, 1, channels, False, (3, 3), one, one, one, tile)
        return direct_convolution.in_patches(taps, weight)

    weight = torch.randn(64, 64, 3, 3)
    assert found(14, weight) and found(4, weight)
    assert not found(3, weight)  # reads a larger weight
    assert not found(14, torch.randn(64, LANES - 1, 3, 3))
    weight[3, 4, 1, 2] = float("inf")
    assert not found(14, weight)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(("size", "by_rule"), [(7, False), (8, True)])
def test_few_patches_are_left_to_max_autotune(size: int, by_rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[DirectConvolution] = []
    pack = direct_convolution.packed_for
    monkeypatch.setattr(
        direct_convolution, "packed_for", lambda weight, found: packed.append(found) or pack(weight, found)
    )
    named: list[Any] = []
    monkeypatch.setattr(direct_convolution, "quickest_on_cpu", lambda *args: named.append(args[1]) or args[3])
    for mode in ("default", "max-autotune"):
        packed.clear()
        model, x = nn.Conv2d(256, 256, 3, padding=1).eval(), torch.randn(1, 256, size, size)
        with torch.no_grad():
            assert_same(stator.freeze(model, mode=mode, fullgraph=True)(x), model(x), FUSED)
        assert [found.in_patches for found in packed] == [by_rule]
    (facts,) = named
    assert any("in patches" in str(fact) for fact in facts)


ALONG_ONE_AXIS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "3 taps": (dict(in_channels=24, out_channels=40, kernel_size=3, padding=1), (2, 24, 31)),
    "by 2": (dict(in_channels=24, out_channels=64, kernel_size=3, stride=2, padding=1), (1, 24, 30)),
    "one channel": (dict(in_channels=1, out_channels=16, kernel_size=10, stride=5), (2, 1, 103)),
    "one tap": (dict(in_channels=40, out_channels=24, kernel_size=1), (3, 40, 17)),
    "depthwise": (dict(in_channels=40, out_channels=40, kernel_size=31, groups=40, padding=15), (2, 40, 50)),
    "dilated": (dict(in_channels=16, out_channels=32, kernel_size=3, padding=4, dilation=4), (1, 16, 25)),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("given", "shape"), ALONG_ONE_AXIS.values(), ids=ALONG_ONE_AXIS)
def test_along_one_axis(given: dict[str, Any], shape: tuple[int, ...], bias: bool) -> None:
    convolution = nn.Conv1d(**given, bias=bias)
    after = nn.Conv1d(given["out_channels"], 32, 3)
    check(nn.Sequential(convolution, nn.GELU(), after), torch.randn(shape), kernels=2)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("make", [lambda: nn.Conv1d(40, 40, 9, groups=40), lambda: nn.Conv2d(40, 40, 3, groups=40)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_weights_that_are_packed_in_each_call(make: Callable[[], nn.Module], channels_last: bool) -> None:
    """Compiled without freezing: the next call reads weights as they are then."""
    model = nn.Sequential(make(), nn.SiLU()).eval()
    x = torch.randn(2, 40, 17) if isinstance(model[0], nn.Conv1d) else torch.randn(2, 40, 17, 15)
    if channels_last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    compiled = stator.compile(model, fullgraph=True, options={"verify": True})
    for _ in range(2):
        with torch.no_grad():
            assert_same(compiled(x), model(x), FUSED)
            for parameter in model.parameters():
                parameter.mul_(2)
    model.train()
    x.requires_grad_()
    gradients = [torch.autograd.grad(f(x).sin().sum(), [x, *model.parameters()]) for f in (compiled, model)]
    assert_same(gradients[0], gradients[1], FUSED)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(
    "tile", [*direct_convolution._TILES.get(LANES, ()), *direct_convolution._DEPTHWISE_TILES.get(LANES, ())]
)
@pytest.mark.parametrize("groups", [1, 88])
@pytest.mark.parametrize("last", [1, 2, 5])
@pytest.mark.usefixtures("by_patches")
def test_tiles(tile: tuple[int, int, float], groups: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TILES", "_DEPTHWISE_TILES"):
        monkeypatch.setattr(direct_convolution, name, {LANES: (tile,)})
    model = nn.Sequential(nn.Conv2d(88, 88, 3, padding=1, groups=groups), nn.Hardswish())
    check(model, torch.randn(1, 88, 10 + last, 9))


PADDED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "one tap": (nn.Conv2d(40, LANES + LANES // 2, 1), (1, 40, 9, 8)),
    "taps and groups": (nn.Conv2d(32, 3 * LANES + 2, 3, padding=1, groups=2), (2, 32, 7, 9)),
    "one column more than a vector": (nn.Conv2d(40, LANES + 1, 1), (1, 40, 7, 7)),
    "one column fewer than two vectors": (nn.Conv2d(40, 2 * LANES - 1, 1), (1, 40, 7, 7)),
    "product": (nn.Linear(48, 2 * LANES + LANES // 2), (100, 48)),
    "many rows": (nn.Conv2d(2048, 2 * LANES + 1, 1), (1, 2048, 12, 12)),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("case", PADDED)
def test_padded_tiles(case: str, with_residual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of a part of a vector more than there are channels."""
    packed: list[DirectConvolution] = []
    pack = direct_convolution.packed_for

    def noted(weight: torch.Tensor, found: DirectConvolution) -> torch.Tensor:
        packed.append(found)
        return pack(weight, found)

    monkeypatch.setattr(direct_convolution, "_TILES", {LANES: ((4, 2, 1.0), (4, 3, 1.0))})
    monkeypatch.setattr(direct_convolution, "packed_for", noted)
    module, shape = PADDED[case]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
            found = F.hardswish(self.module(x))
            return found + residual if with_residual else found

    x = torch.randn(shape)
    check(Model(), x, torch.randn(module(x).shape))
    assert [found.is_padded for found in packed] == [True]


_WITHOUT_EXTENSIONS = """
import torch
from torch import nn
import stator
from stator.runtime import toolchain

toolchain.NATIVE_FLAGS = (("-march=x86-64",),)
for groups, kernel in (1, 1), (2, 3), (48, 5):
    model = nn.Sequential(nn.Conv2d(48, 48, kernel, padding=kernel // 2, groups=groups), nn.Hardswish()).eval()
    x = torch.randn(1, 48, 20, 20)
    with torch.no_grad():
        torch.testing.assert_close(stator.freeze(model)(x), model(x), rtol=1e-4, atol=1e-4)
"""


@pytest.mark.fixed_sizes
@pytest.mark.skipif("avx2" not in cpu_features(), reason="has an instruction of FMA")
def test_tiles_where_the_compiler_uses_fewer_instructions(tmp_path: Path) -> None:
    environment = {**os.environ, "STATOR_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-W", "error::RuntimeWarning", "-c", _WITHOUT_EXTENSIONS]
    subprocess.run(run, env=environment, check=True, timeout=300)


FITTING: dict[str, tuple[int, int, int, tuple[int, int]]] = {
    "many rows": (3136, 64, 64, (6, 64)),
    "25 rows": (25, 384, 448, (5, 80)),
    "49 rows": (49, 64, 512, (7, 64)),
    "one narrow block": (784, 32, 128, (10, 32)),
    "positions in one set of the cache": (784, 32, 1024, (10, 32)),
}


@pytest.mark.parametrize(("rows", "columns", "apart", "tile"), FITTING.values(), ids=FITTING)
def test_tiles_that_fit(
    rows: int, columns: int, apart: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_convolution, "float_lanes", lambda: 16)
    found = direct_convolution._tile(direct_convolution._TILES[16], rows, columns, 576, apart, rows)
    assert found == ConvolutionTile(*tile)


class Block(nn.Module):
    """What follows a convolution, given its result and a tensor of equal shape."""

    def __init__(
        self, follow: Callable[[torch.Tensor, torch.Tensor], Any], convolution: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.convolution, self.follow = convolution or nn.Conv2d(24, 40, 3, padding=1), follow

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.follow(self.convolution(x), y)


FOLLOWING: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "nothing": lambda z, y: z,
    "residual": lambda z, y: F.relu(z + y),
    "result and activation": lambda z, y: (z, F.silu(z)),
    "scale of channels": lambda z, y: z * torch.sigmoid(y.mean((2, 3), keepdim=True)),
    "scale of positions": lambda z, y: F.gelu(z) * y[:, :1],
    "transposed reader": lambda z, y: z.transpose(2, 3) + 1,
    "flipped reader": lambda z, y: z.flip(3) + z,
    "mean": lambda z, y: F.relu(z).mean((2, 3)),
    "pooling": lambda z, y: F.max_pool2d(F.relu(z), 3, 2, 1),
    "upsampled": lambda z, y: F.interpolate(F.relu(z), scale_factor=2),
    "concatenated": lambda z, y: torch.cat([F.relu(z), y, z], 1),
    "softmax of channels": lambda z, y: torch.softmax(z + y, 1),
    "half floats": lambda z, y: (z + y).half(),
    "positions": lambda z, y: z.argmax(1),
    "comparison": lambda z, y: torch.where(z > y, z, -y),
    "part": lambda z, y: F.relu(z[:, 8:24]),
    "twice": lambda z, y: torch.sin(F.relu(z) + 1) * F.tanh(z - y),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("follow", FOLLOWING.values(), ids=FOLLOWING)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "NHWC"])
def test_loops_that_follow(follow: Callable[..., Any], layout: torch.memory_format) -> None:
    x, y = torch.randn(2, 24, 9, 10), torch.randn(2, 40, 9, 10)
    check(Block(follow), x.to(memory_format=layout), y.to(memory_format=layout))


@pytest.mark.fixed_sizes
def test_two_convolutions_and_one_sum() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Conv2d(16, 32, 1, stride=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.first(x) + self.second(x))

    check(Residual(), torch.randn(2, 16, 11, 12), kernels=2)


@pytest.mark.fixed_sizes
def test_follower_that_overwrites_the_images() -> None:
    """The tile of a position reads what other tiles must not have written yet."""

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = x + F.relu(self.convolution(x))
            return x

    check(InPlace(), torch.randn(1, 32, 17, 18))


@pytest.mark.fixed_sizes
def test_images_written_in_place() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(self.convolution(x))

    model = Written().eval()
    frozen = stator.freeze(model, options={"verify": True})
    x = torch.randn(1, 32, 12, 12)
    ours, eagers = x.clone(), x.clone()
    with torch.no_grad():
        assert_same((frozen(ours), ours), (model(eagers), eagers), FUSED)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.usefixtures("by_patches")
def test_numbers_that_are_not_finite(groups: int) -> None:
    """In images and bias they spread as in eager. A dense kernel that has them is the library's: ours multiplies it by
    padding."""
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=groups), nn.ReLU())
    x = torch.randn(1, 16, 12, 13)
    x[0, 3, 5, 6], x[0, 4, 0, 0], x[0, 5, 11, 12] = float("nan"), float("inf"), -float("inf")
    with torch.no_grad():
        model[0].bias[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")])  # type: ignore[index]
    check(model, x)
    with torch.no_grad():
        model[0].weight[1, 0, 1, 1] = float("inf")  # type: ignore[index]
    check(model, x, kernels=0 if groups == 1 else 1)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(
    ("convolution", "shape"),
    [
        (nn.Conv2d(16, LANES // 2 - 1, 3), (1, 16, 8, 8)),
        (nn.Conv2d(48, 4 * LANES, 3, groups=8), (1, 48, 8, 8)),
        (nn.ConvTranspose2d(16, 32, 3), (1, 16, 8, 8)),
        (nn.Conv3d(16, 32, 3), (1, 16, 5, 8, 8)),
        (nn.Conv2d(16, 32, 3).double(), (1, 16, 8, 8)),
    ],
    ids=["narrow", "narrow groups", "transposed", "3-d", "float64"],
)
def test_left_to_the_library(convolution: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=next(convolution.parameters()).dtype)
    check(nn.Sequential(convolution, nn.ReLU()), x, kernels=0)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("kind", ["convolutions", "product in chunks of rows", "product in panels of channels"])
def test_threads(threads: int, kind: str) -> None:
    """The number is read when a kernel runs, and changes no result."""
    convolutions = nn.Conv2d(32, 200, 3, padding=1), nn.ReLU(), nn.Conv2d(200, 200, 3, groups=200)
    layers, shape = {
        "convolutions": (convolutions, (2, 32, 30, 31)),
        "product in chunks of rows": ((nn.Linear(700, 250), nn.ReLU()), (413, 700)),
        "product in panels of channels": ((nn.Linear(4500, 250), nn.ReLU()), (61, 4500)),
    }[kind]
    model = nn.Sequential(*layers).eval()
    frozen = stator.freeze(model)
    x = torch.randn(shape)
    with torch.no_grad():
        expected = model(x)
        first = frozen(x)
        usual = torch.get_num_threads()
        try:
            torch.set_num_threads(threads)
            found = frozen(x)
        finally:
            torch.set_num_threads(usual)
    assert_same(found, expected, FUSED)
    assert torch.equal(found, first)


class Rows(nn.Module):
    """A weight that lies by rows, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(40, 150)), nn.Parameter(torch.randn(150))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.addmm(self.bias, x, self.weight), approximate="tanh")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(40, 160), nn.Linear(160, 40, bias=False), nn.LayerNorm(40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


PRODUCTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(40, 96), (33, 40), 1),
    "activation": (lambda: nn.Sequential(nn.Linear(40, 50), nn.ReLU()), (2, 9, 40), 1),
    "by rows": (Rows, (17, 40), 1),
    "residual": (Residual, (3, 11, 40), 2),
    "panels of channels": (lambda: nn.Sequential(nn.Linear(4500, 70), nn.ReLU()), (37, 4500), 1),
    "few rows": (lambda: nn.Linear(40, 96), (3, 40), 0),
    "few columns": (lambda: nn.Linear(40, LANES // 2 - 1), (33, 40), 0),
    "less than a vector": (lambda: nn.Linear(40, LANES - 1), (33, 40), 1),
    "softmax": (lambda: nn.Sequential(nn.Linear(40, 64), nn.Softmax(-1)), (20, 40), 1),
    "transposed rows": (lambda: nn.Sequential(nn.Unflatten(0, (4, 5)), nn.Linear(40, 64)), (20, 40), 1),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(("make", "shape", "kernels"), PRODUCTS.values(), ids=PRODUCTS)
def test_products(make: Callable[[], nn.Module], shape: tuple[int, ...], kernels: int) -> None:
    x = torch.randn(shape)
    x[(0,) * x.dim()] = float("nan")
    check(make(), x, kernels=kernels)


class Gaps(nn.Module):
    """Rows and columns that are parts of longer ones, and a residual behind the product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(601, 700) / 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x[:, 7:507] @ self.weight[:, 100:600].t()) + x[:, :601]


IN_EACH_CALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(300, 400), (64, 300), 1),
    "activation": (lambda: nn.Sequential(nn.Linear(130, 333, bias=False), nn.GELU()), (3, 67, 130), 1),
    "panels and chunks of rows": (lambda: nn.Sequential(nn.Linear(801, 805), nn.ReLU()), (1100, 801), 1),
    "gaps": (Gaps, (77, 700), 1),
    "one row": (lambda: nn.Sequential(nn.Linear(300, 801), nn.ReLU()), (1, 300), 1),
    "few rows": (lambda: nn.Linear(300, 800), (24, 300), 1),
    "more channels than columns": (lambda: nn.Linear(800, 300), (25, 800), 1),
    "by rows": (Rows, (1700, 40), 1),
    "few rows, by rows": (Rows, (8, 40), 1),
    "three rows, by rows": (Rows, (3, 40), 1),
    "little work": (lambda: nn.Linear(31, 64), (8, 31), 0),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(("make", "shape", "kernels"), IN_EACH_CALL.values(), ids=IN_EACH_CALL)
def test_products_of_matrices_packed_in_each_call(
    make: Callable[[], nn.Module], shape: tuple[int, ...], kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call reads weights as they are then. Each number of threads has code of its own."""
    lowered = of_matrices(monkeypatch)
    model, x, usual = make().eval(), torch.randn(shape), torch.get_num_threads()
    compiled = stator.compile(model, fullgraph=True, options={"verify": True})
    try:
        with torch.no_grad():
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                assert_same(compiled(x), model(x), FUSED)
                for parameter in model.parameters():
                    parameter.mul_(-0.9)
    finally:
        torch.set_num_threads(usual)
    assert sum(isinstance(target, DirectConvolution) for target in lowered) == 3 * kernels


def of_matrices(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Multiply by any matrix in kernels of ours, on every processor. Returns the calls that are lowered from now on."""
    monkeypatch.setattr(products_by_matrix, "is_kernel_quicker", lambda *_: True)
    monkeypatch.setattr(products_by_matrix, "_PACKED_LANES", LANES)
    monkeypatch.setattr(products_by_matrix, "_LEAST_SHARE", 0)
    lowered, original = [], LoweringBuilder.extern

    def extern(builder: LoweringBuilder, target: Any, *given: Any, **named: Any) -> Any:
        lowered.append(target)
        return original(builder, target, *given, **named)

    monkeypatch.setattr(LoweringBuilder, "extern", extern)
    return lowered


@pytest.mark.parametrize("sizes", [(1, 128, 512), (1, 4096, 4096), (16, 4096, 4096), (196, 64, 256), (4096, 512, 512)])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_small_products_and_few_rows_have_kernels_of_ours_where_libraries_multiply_as_quickly(
    sizes: tuple[int, int, int], lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products_by_matrix, "float_lanes", lambda: lanes)
    chosen = {8: True, 16: sizes != (4096, 512, 512)}.get(lanes, False)
    assert products_by_matrix.is_candidate(*sizes, trains=False) == chosen
    assert products_by_matrix.is_candidate(*sizes, trains=True) == (lanes == 8)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(("out", "ours"), [(8, 1), (256, 0)])
def test_kernels_repay_their_compilation_where_they_are_a_share_of_the_graph(
    out: int, ours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution of several taps, and a product of one row."""
    lowered = of_matrices(monkeypatch)
    monkeypatch.setattr(products_by_matrix, "_LEAST_SHARE", 1 / 8)
    layers = nn.Conv2d(3, out, 3), nn.Flatten(), nn.AdaptiveAvgPool1d(64), nn.Linear(64, 512)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 3, 34, 34)
    with torch.no_grad():
        assert_same(stator.compile(model, fullgraph=True)(x), model(x), FUSED)
    assert sum(isinstance(target, DirectConvolution) and target.matrix is not None for target in lowered) == ours


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("make", "width"), [(lambda: nn.Linear(701, 333), 701), (Rows, 40), (Gaps, 700)])
def test_matrices_and_rows_that_change(
    make: Callable[[], nn.Module], width: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel multiplies a matrix as it lies in memory where rows are few, and else packs it."""
    lowered, usual = of_matrices(monkeypatch), torch.get_num_threads()
    model = nn.Sequential(make(), nn.ReLU()).eval()
    compiled = stator.compile(model, fullgraph=True, dynamic=True, options={"verify": True})
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            for rows in (70, 1, 2, 3, 7, 8, 9, 24, 25, 63, 515):
                x = torch.randn(rows, width)
                assert_same(compiled(x), model(x), FUSED)
    finally:
        torch.set_num_threads(usual)
    assert sum(isinstance(target, DirectConvolution) for target in lowered) == 1


def test_loops_that_follow_run_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text for few rows has them, and that for many."""
    of_matrices(monkeypatch)
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    compiled = stator.compile(nn.Sequential(nn.Linear(71, 96), nn.Sigmoid()), fullgraph=True, dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(40, 71))
    (kernel,) = tmp_path.glob("*/60_code.cpp")
    assert kernel.read_text().count("store(out0") == 2


def test_bias_is_added_to_the_sums_whatever_follows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A product that loops read, and one that a library reads, have one kernel, also where rows change."""
    of_matrices(monkeypatch)
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    first, norm, second = nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 96)

    def function(x: torch.Tensor) -> torch.Tensor:
        return second(norm(first(x) + x))

    compiled = stator.compile(function, fullgraph=True, dynamic=True, options={"verify": True})
    with torch.no_grad():
        for shape in ((4, 40, 96), (3, 2, 96)):
            x = torch.randn(shape)
            assert_same(compiled(x), function(x), FUSED)
    (kernels,) = tmp_path.glob("*/60_code.cpp")
    assert kernels.read_text().count("multiply_rows") == 1


def test_few_rows_of_all_widths_share_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A unit compiles it once."""
    of_matrices(monkeypatch)
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    wide, narrow = nn.Linear(96, 4 * LANES), nn.Linear(4 * LANES, 3 * LANES)

    def function(x: torch.Tensor) -> torch.Tensor:
        return narrow(wide(x))

    compiled = stator.compile(function, fullgraph=True, dynamic=True, options={"verify": True})
    with torch.no_grad():
        for rows in (40, 5):
            x = torch.randn(rows, 96)
            assert_same(compiled(x), function(x), FUSED)
    (kernels,) = tmp_path.glob("*/60_code.cpp")
    text = kernels.read_text()
    assert len(set(re.findall("constexpr int64_t width = .*?,", text))) == 2
    assert len(set(re.findall("multiply_rows<.*?>", text))) == 1


@pytest.mark.parametrize(("make", "width"), [(lambda: nn.Linear(701, 333), 701), (Rows, 40)])
def test_rows_chosen_by_a_mask(make: Callable[[], nn.Module], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is a number of rows, too."""
    lowered, model = of_matrices(monkeypatch), nn.Sequential(make(), nn.ReLU()).eval()

    def function(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return model(x[keep])

    compiled = stator.compile(function, fullgraph=True, options={"verify": True})
    with torch.no_grad():
        for rows in (70, 8, 1, 0):
            given = torch.randn(90, width), torch.arange(90) < rows
            assert_same(compiled(*given), function(*given), FUSED)
    assert any(isinstance(target, DirectConvolution) for target in lowered)


def test_rows_that_change() -> None:
    """A number that is a symbol is left to libraries."""
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU()).eval()
    frozen = stator.freeze(model)
    with torch.no_grad():
        for rows in (16, 17, 40, 3, 100):
            x = torch.randn(rows, 40)
            assert_same(frozen(x), model(x), FUSED)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(160, 576), nn.Linear(576, 200, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = F.gelu(self.first(x))
        return hidden, self.second(hidden) + x.mean()


@pytest.mark.fixed_sizes  # kernels have a known number of rows
@pytest.mark.parametrize("wanted", [*(str(LANES * vectors) for vectors in range(1, 5)), "blas", "onednn", "mkl"])
def test_max_autotune_times_tiles_beside_libraries(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alternative runs, and the chosen one multiplies."""
    asked = []

    def chosen(kind: str, facts: tuple[Any, ...], alternatives: Callable[[], Any], rule: str) -> str:
        runs = alternatives()
        for run in itertools.chain.from_iterable(runs.values()):
            run()
        found = [name for name in runs if wanted in (name, name.rpartition(" x ")[2])]
        asked.append((kind, *facts[:3]))
        if not found:
            pytest.skip(f"this build has no {wanted}")
        return found[0]

    monkeypatch.setattr(packed_products, "quickest_on_cpu", chosen)
    model, x = Layers().eval(), torch.randn(64, 160)
    before = dict(counters.counts)
    with torch.no_grad():
        frozen = stator.freeze(model, mode="max-autotune", fullgraph=True, options={"verify": True})
        assert_same(frozen(x), model(x), FUSED)
    assert {("product by a far weight", 64, *sizes) for sizes in ((160, 576), (576, 200))} <= set(asked)
    counted = {name: counters.counts[name] - before.get(name, 0) for name in counters.counts}
    assert counted.get("packed:direct_convolution", 0) == (2 if wanted.isdigit() else 0)
    if wanted in ("onednn", "mkl"):
        assert counted[f"packed:{wanted}"] == 2


CONVOLUTIONS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "3 x 3": (dict(in_channels=64, out_channels=72, kernel_size=3, padding=1), (2, 64, 14, 15)),
    "by 2": (dict(in_channels=96, out_channels=128, kernel_size=1, stride=2), (1, 96, 39, 40)),
    "groups": (dict(in_channels=128, out_channels=128, kernel_size=3, groups=2, padding=1), (1, 128, 12, 12)),
    "depthwise": (dict(in_channels=128, out_channels=128, kernel_size=5, groups=128, padding=2), (4, 128, 30, 30)),
    "dilated, many": (dict(in_channels=64, out_channels=64, kernel_size=3, dilation=2), (3, 64, 60, 70)),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(("given", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("library", [False, True])
def test_max_autotune_times_tiles_of_convolutions(
    given: dict[str, Any], shape: tuple[int, ...], library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alternative runs, and the last tile or oneDNN computes the convolution."""
    asked = []

    def chosen(kind: str, facts: tuple[Any, ...], alternatives: Callable[[], Any], rule: str) -> str:
        runs = alternatives()
        for run in itertools.chain.from_iterable(runs.values()):
            run()
        asked.append(kind)
        if library and "onednn" not in runs:
            pytest.skip("this build has no packed convolutions")
        return "onednn" if library else next(name for name in reversed(runs) if name != "onednn")

    monkeypatch.setattr(direct_convolution, "quickest_on_cpu", chosen)
    model, x = nn.Sequential(nn.Conv2d(**given), nn.ReLU()).eval(), torch.randn(shape)
    before = counters.counts["packed:direct_convolution"]
    with torch.no_grad():
        frozen = stator.freeze(model, mode="max-autotune", fullgraph=True, options={"verify": True})
        assert_same(frozen(x), model(x), FUSED)
    assert asked == ["convolution"]
    assert (counters.counts["packed:direct_convolution"] - before == 0) == library


@pytest.mark.fixed_sizes
def test_products_of_many_rows_are_timed_with_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed kernels are compiled for the rows and the part of the weight that they get."""
    ran = []

    def compiled(some: Sequence[DirectConvolution]) -> list[Callable[..., None]]:
        return [compiled_one(found) for found in some]

    def compiled_one(found: DirectConvolution) -> Callable[..., None]:
        def run(x: torch.Tensor, packed: torch.Tensor, out: torch.Tensor) -> None:
            assert (x.shape, out.shape) == ((found.rows, found.pixel), (found.rows, found.columns))
            ran.append(found.rows)

        return run

    def chosen(kind: str, facts: tuple[Any, ...], alternatives: Callable[[], Any], rule: str) -> str:
        for run in itertools.chain.from_iterable(alternatives().values()):
            run()
        return rule

    monkeypatch.setattr(cpp, "compiled_convolutions", compiled)
    monkeypatch.setattr(packed_products, "quickest_on_cpu", chosen)
    monkeypatch.setattr(packed_products, "_TIMED_WORK", 1 << 16)
    with torch.no_grad():
        stator.freeze(Layers().eval(), mode="max-autotune")(torch.randn(210, 160))
    assert set(ran) == {64}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("layer", [nn.Conv2d(72, 104, 1), nn.Linear(72, 104)], ids=["convolution", "product"])
def test_alternatives_are_compiled_at_once(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    compile_all = cpp.compiled_convolutions

    def compiled(some: Sequence[DirectConvolution]) -> list[Callable[..., None]]:
        asked.append(len(some))
        return compile_all(some)

    def chosen(kind: str, facts: tuple[Any, ...], alternatives: Callable[[], Any], rule: str) -> str:
        alternatives()
        return rule

    monkeypatch.setattr(cpp, "compiled_convolutions", compiled)
    for module in (packed_products, direct_convolution):
        monkeypatch.setattr(module, "quickest_on_cpu", chosen)
    with torch.no_grad():
        shape = (1, 72, 28, 28) if isinstance(layer, nn.Conv2d) else (784, 72)
        stator.freeze(layer.eval(), mode="max-autotune")(torch.randn(shape))
    assert asked == [direct_convolution.MOST_TIMED]


@pytest.mark.fixed_sizes
@pytest.mark.skipif(LANES != 16, reason="loops that follow have no registers to themselves")
@pytest.mark.parametrize("across", [18, 17])
def test_loops_that_follow_read_sums_in_registers(across: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whole tiles, and a tile that computes its last position several times."""
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    check(nn.Sequential(nn.Conv2d(40, 64, 1), nn.Hardswish()), torch.randn(1, 40, 7, across))
    (kernels,) = tmp_path.glob("*/60_code.cpp")
    assert re.search(r"const vf32 t\d+ = a5_3;", kernels.read_text())


@pytest.mark.parametrize("groups", [1, 32])
def test_no_images(groups: int) -> None:
    convolution = nn.Conv2d(32, 32, 3, groups=groups).eval()
    images = torch.randn(0, 32, 8, 8)
    with torch.no_grad():
        found = stator.compile(stator.freeze(convolution), fullgraph=True)(images)
        assert torch.equal(found, convolution(images))
