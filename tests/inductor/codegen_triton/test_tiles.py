"""Which products and convolutions the rule makes launches of. Needs no GPU: sizes decide, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.inductor.all_sizes import symbolic_fakes
from tests.inductor.claimed_gpu import lowered_on_gpu

from stator.inductor.codegen.triton import choose_tile
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import ProductGroup
from stator.inductor.schedule.products import fuse_products
from stator.inductor.schedule.verifier import verify_schedule
from stator.shapes.environment import Environment

pytestmark = pytest.mark.fixed_sizes


def launches(function: Callable[..., Any], *sizes: tuple[int, ...], batch: str | None = None) -> list[ProductGroup]:
    """The launches of a function of half floats. batch: the name of the first size, where that is not known."""
    tensors = [torch.empty(size, dtype=torch.bfloat16) for size in sizes]
    fakes = symbolic_fakes(tensors, [(batch,), *[()] * (len(sizes) - 1)], Environment())
    lowered = lowered_on_gpu(function, fakes)
    found, lowered = fuse_products(schedule(lowered), lowered, partial(choose_tile, lowered=lowered))
    verify_schedule(found, lowered)
    return [step for step in found.steps if isinstance(step, ProductGroup)]


def convolved(x: Any, weight: Any, groups: int = 1, stride: int = 1) -> Any:
    return F.relu(F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2, groups=groups))


@pytest.mark.parametrize(
    ("images", "channels", "side", "groups", "launch"),
    [
        (1, 216, 28, 9, True),
        (32, 576, 14, 24, True),
        (1, 512, 14, 32, True),  # 16 channels of a group
        (1, 256, 28, 32, False),  # 8
        (1, 64, 56, 1, True),
        (32, 128, 28, 1, True),
        (1, 256, 14, 1, False),
        (32, 256, 14, 1, False),
    ],
)
def test_convolutions_of_groups_and_of_few_channels_are_launches(
    images: int, channels: int, side: int, groups: int, launch: bool
) -> None:
    function = partial(convolved, groups=groups)
    found = launches(function, (images, channels, side, side), (channels, channels // groups, 3, 3))
    assert [group.products.windows is not None for group in found] == [True] * launch
    assert all(len(group.members) == 2 for group in found), "the activation is the launch's"


def test_convolutions_of_large_images_without_loops_behind_are_left_to_the_library() -> None:
    def alone(x: Any, weight: Any) -> Any:
        return F.max_pool2d(F.conv2d(x, weight, padding=1), 3)

    assert not launches(alone, (32, 64, 56, 56), (64, 64, 3, 3))
    assert launches(convolved, (32, 64, 56, 56), (64, 64, 3, 3))


@pytest.mark.parametrize(("images", "side", "rows"), [(32, 56, 128), (32, 28, 64), (1, 28, 64), (1, 14, 32)])
def test_tiles_of_convolutions_are_no_wider_than_their_results(images: int, side: int, rows: int) -> None:
    (found,) = launches(convolved, (images, 128, side, side), (32, 128, 3, 3))
    tile = found.products.tile
    assert tile is not None and (tile.rows, tile.columns) == (rows, 32)


def test_convolutions_of_any_number_of_images_are_left_to_the_library() -> None:
    assert not launches(partial(convolved, groups=9), (4, 216, 28, 28), (216, 24, 3, 3), batch="n")


def test_convolutions_that_skip_positions_are_launches() -> None:
    assert launches(partial(convolved, stride=2), (1, 256, 56, 56), (512, 256, 1, 1))


def gated(x: Any, weight: Any) -> Any:
    return torch.sigmoid(x @ weight)


def test_one_row_by_a_large_matrix_is_left_to_the_library() -> None:
    assert launches(gated, (1, 1024), (1024, 1024)) and launches(gated, (16, 2048), (2048, 2048))
    assert not launches(gated, (1, 2048), (2048, 2048))


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "tile"),
    [
        (401408, 16, 96, (128, 32, 16)),
        (25088, 64, 256, (64, 64, 64)),
        (1568, 80, 480, (64, 32, 64)),
        (25088, 144, 40, (128, 64, 64)),
        (25088, 216, 576, None),
        (25088, 512, 128, None),
    ],
)
def test_many_rows_of_small_depth_with_an_epilogue_are_launches(
    rows: int, depth: int, columns: int, tile: tuple[int, int, int] | None
) -> None:
    found = [group.products.tile for group in launches(gated, (rows, depth), (depth, columns))]
    assert [(one.rows, one.columns, one.depth) for one in found if one is not None] == ([] if tile is None else [tile])
    assert not launches(torch.matmul, (rows, depth), (depth, columns)), "without loops behind, the library is as quick"


@pytest.mark.parametrize(("rows", "depth", "columns"), [(32, 96, 4), (64, 4, 96), (128, 1152, 48)])
def test_gates_of_channels_are_launches(rows: int, depth: int, columns: int) -> None:
    assert launches(gated, (rows, depth), (depth, columns))
