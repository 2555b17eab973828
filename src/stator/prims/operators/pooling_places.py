"""Max pooling that says where in each window the largest element lies, in one byte: `stator::max_pool_places`.

ATen's operator gives the place in the image, in eight bytes, which training keeps for the backward: as much memory as
the image that is pooled. Kernels of our own know the place in the window anyway, in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.prims.record import TensorMeta, shape_rule
from stator.prims.shape_rules.like_arguments import in_format
from stator.prims.shape_rules.neural_networks.pooling import POOL, pooled, pooled_shape

Tensor = torch.Tensor
aten = torch.ops.aten
_MOST = 32  # elements of a window, and windows around an element: kernels have an expression for each


def windows_around(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """How many windows meet at an element at most, along both dimensions."""
    return [-(-((k - 1) * d + 1) // s) for k, s, d in zip(kernel, stride, dilation, strict=True)]


def place_step(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> int:
    """The place of an element in a window is its row there times this number, plus its column. No other element of a
    window around it has this place."""
    return windows_around(kernel, stride, dilation)[1] * stride[1]


def has_places(kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> bool:
    """True if places fit in a byte, and kernels of our own compute both directions."""
    if any(pad and gap > 1 for pad, gap in zip(padding, dilation, strict=True)):
        return False
    if math.prod(kernel) > _MOST or math.prod(windows_around(kernel, stride, dilation)) > _MOST:
        return False
    row, column = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    return row * place_step(kernel, stride, dilation) + column < 128


def _starts(places: Tensor, stride: Sequence[int], padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    rows, columns = [
        torch.arange(size, device=places.device) * step - pad
        for size, step, pad in zip(places.shape[-2:], stride, padding, strict=True)
    ]
    return rows.unsqueeze(1), columns


def _forward(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    values, indices = aten.max_pool2d_with_indices.default(x, kernel, stride, padding, dilation, ceil_mode)
    (rows, columns), width = _starts(indices, stride, padding), x.shape[-1]
    step = place_step(kernel, stride, dilation)
    return values, ((indices // width - rows) * step + indices % width - columns).to(torch.int8)


def _backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    places: Tensor,
) -> Tensor:
    (rows, columns), step = _starts(places, stride, padding), place_step(kernel, stride, dilation)
    indices = (places // step + rows) * x.shape[-1] + places % step + columns
    return aten.max_pool2d_with_indices_backward.default(  # type: ignore[no-any-return]
        grad, x, kernel, stride, padding, dilation, ceil_mode, indices
    )


_library = torch.library.Library("stator", "FRAGMENT")
_GEOMETRY = "int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode"
_library.define(f"max_pool_places(Tensor x, {_GEOMETRY}) -> (Tensor, Tensor)")
_library.define(f"max_pool_places_backward(Tensor grad, Tensor x, {_GEOMETRY}, Tensor places) -> Tensor")
_library.impl("max_pool_places", _forward, "CompositeExplicitAutograd")
_library.impl("max_pool_places_backward", _backward, "CompositeExplicitAutograd")

max_pool_places = torch.ops.stator.max_pool_places.default
max_pool_places_backward = torch.ops.stator.max_pool_places_backward.default


@shape_rule(max_pool_places, tags=POOL)
def _pooled(
    x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[TensorMeta, TensorMeta]:
    """kernel, stride, padding, dilation: of rows and columns, with `has_places`."""
    values = pooled(x, pooled_shape(x, 2, kernel, stride, padding, dilation, ceil_mode))
    return values, replace(values, dtype=torch.int8)


@shape_rule(max_pool_places_backward, tags=("scatter",))
def _gradient(grad: Any, x: Any, *geometry: Any) -> TensorMeta:
    return in_format(x)
