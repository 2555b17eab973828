"""Shape rules of interpolation and of padding by reflection or replication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.prims.layout import has_zero, holds, suggested_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.operands import fresh, overloads, shape_table

UPSAMPLING = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""


def resized(self: Any, output_size: Sequence[Any]) -> TensorMeta:
    """An image of another size. Only the batch may be empty."""
    shape = tuple(self.shape)
    refuse_if(len(shape) != len(output_size) + 2)
    refuse_if(has_zero(shape[2:]) or not all(holds(size > 0) for size in output_size) or has_zero(shape[1:2]))
    result = (*shape[:2], *output_size)
    return fresh(result, self, stride=suggested_strides(shape, self.stride(), result))


@shape_rule(
    *overloads("replication_pad1d replication_pad2d replication_pad3d"),
    tags=("index",),
)
def pad_from_inside(self: Any, padding: Sequence[Any]) -> TensorMeta:
    _require_content(self, len(padding) // 2)
    return _padded(self, padding)


@shape_rule(*overloads("reflection_pad1d reflection_pad2d reflection_pad3d"), tags=("index",))
def reflection_pad(self: Any, padding: Sequence[Any]) -> TensorMeta:
    _require_content(self, len(padding) // 2)
    for axis in range(len(padding) // 2):
        size = self.shape[len(self.shape) - 1 - axis]
        refuse_if(not all(holds(size > width) for width in padding[2 * axis : 2 * axis + 2]))
    return _padded(self, padding)


def _require_content(self: Any, rank: int) -> None:
    """Only the batch, the first of rank + 2 dimensions, may be empty."""
    shape = tuple(self.shape)
    refuse_if(has_zero(shape[len(shape) - rank - 1 :]))


def _padded(self: Any, padding: Sequence[Any]) -> TensorMeta:
    shape = list(self.shape)
    for axis in range(len(padding) // 2):
        dim = len(shape) - 1 - axis
        shape[dim] = shape[dim] + padding[2 * axis] + padding[2 * axis + 1]
        refuse_if(shape[dim] < 1)
    return fresh(shape, self, stride=suggested_strides(tuple(self.shape), self.stride(), tuple(shape)))


def _check_grid(input: Any, grid: Any, rank: int) -> None:
    refuse_if(len(input.shape) != rank + 2 or len(grid.shape) != rank + 2)
    refuse_if(not holds(input.shape[0] == grid.shape[0]) or not holds(grid.shape[-1] == rank))
    refuse_if(has_zero(input.shape[2:]))


@shape_rule(*overloads("grid_sampler_2d"), tags=("index",))
def grid_sampler_2d(input: Any, grid: Any, *_modes: Any) -> TensorMeta:
    _check_grid(input, grid, 2)
    return fresh((*input.shape[:2], grid.shape[1], grid.shape[2]), input)


@shape_rule(*overloads("grid_sampler_3d"), tags=("index",))
def grid_sampler_3d(input: Any, grid: Any, *_modes: Any) -> TensorMeta:
    _check_grid(input, grid, 3)
    return fresh((*input.shape[:2], *grid.shape[1:4]), input)


shape_table(("index",), {UPSAMPLING: lambda self, output_size, *_, **__: resized(self, output_size)})
