"""Convolutions as launches of products, with what follows them: chosen by the rule or by timing, beside eager in
float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.device import DEVICE, only_cuda

import stator
from stator.inductor.codegen.triton import tuning
from stator.inductor.codegen.triton.tiled import tiles
from stator.inductor.schedule.groups import ProductGroup, Tile

TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# images, channels, results, side, groups, taps, stride
SHAPES = [
    (1, 72, 72, 56, 3, 3, 1),
    (1, 216, 216, 28, 9, 3, 2),
    (2, 1512, 1512, 7, 63, 3, 1),
    (3, 128, 256, 15, 8, 5, 2),
    (1, 64, 64, 56, 1, 3, 1),
    (1, 256, 256, 14, 1, 3, 1),
]


def followed(x: Any, weight: Any, scale: Any, other: Any, groups: int, stride: int) -> Any:
    y = F.conv2d(x, weight, None, stride, weight.shape[2] // 2, 1, groups)
    return F.silu(y * scale) + other


def case(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    images, channels, out, side, groups, taps, stride = shape
    after = (side - 1) // stride + 1
    sizes = ((images, channels, side, side), (out, channels // groups, taps, taps))
    sizes += ((out, 1, 1), (images, out, after, after))  # type: ignore[assignment]
    given = [(torch.randn(size, device=DEVICE) * 0.3).to(dtype) for size in sizes]
    return lambda *tensors: followed(*tensors, groups, stride), given


def check(shape: tuple[int, ...], dtype: torch.dtype, **settings: Any) -> None:
    function, given = case(shape, dtype)
    with torch.no_grad():
        found = stator.compile(function, fullgraph=True, **settings)(*given)
        exact = function(*[tensor.double() for tensor in given])
    assert found.dtype is dtype and found.shape == exact.shape
    assert float((found.double() - exact).norm() / exact.norm()) < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ("default", "max-autotune"))
def test_convolutions_with_what_follows(mode: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(shape, dtype, mode=mode)


@only_cuda
@pytest.mark.parametrize("shape", SHAPES)
def test_each_tile_that_timing_may_choose_for_windows(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    counted: set[int] = set()

    def choose(tuner: Any, group: ProductGroup, may_share_depth: bool) -> Tile:
        assert group.products.windows is not None
        found = tiles.candidates(group, may_share_depth, lowered=tuner.lowered)
        counted.add(len(found))
        return found[turn % len(found)]

    monkeypatch.setattr(tuning.Tuner, "__call__", choose)
    for turn in range(tiles.MOST):  # noqa: B007 - choose reads it
        stator.reset()
        check(shape, torch.bfloat16, mode="max-autotune", options={"verify": True})
    assert max(counted) >= 3
