"""Shape rules of interpolation and of padding by reflection or replication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.prims.layout import has_zero, holds, suggested_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.shape_rules.operands import fresh, overloads

UPSAMPLING = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""


@shape_rule(*overloads(UPSAMPLING), tags=("index",))
def upsample(self: Any, output_size: Sequence[Any], *_scales: Any, **_options: Any) -> TensorMeta:
    return resized(self, output_size)


def resized(self: Any, output_size: Sequence[Any]) -> TensorMeta:
    """An image of another size. Only the batch may be empty."""
    shape = tuple(self.shape)
    if len(shape) != len(output_size) + 2:
        raise RuntimeError(f"It is expected input_size equals to {len(output_size) + 2}, but got size {len(shape)}")
    if has_zero(shape[2:]) or not all(holds(size > 0) for size in output_size):
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input {list(shape[2:])} and output "
            f"{list(output_size)}"
        )
    if has_zero(shape[1:2]):
        raise RuntimeError(f"Non-empty {len(shape)}D data tensor expected but got a tensor with sizes {list(shape)}")
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
        if not all(holds(size > width) for width in padding[2 * axis : 2 * axis + 2]):
            raise RuntimeError(
                f"Padding size should be less than the corresponding input dimension, but got: padding "
                f"{list(padding)} of input {list(self.shape)}"
            )
    return _padded(self, padding)


def _require_content(self: Any, rank: int) -> None:
    """Only the batch, the first of rank + 2 dimensions, may be empty."""
    shape = tuple(self.shape)
    if has_zero(shape[len(shape) - rank - 1 :]):
        raise RuntimeError(
            f"Expected {rank + 1}D or {rank + 2}D (batch mode) tensor with possibly 0 batch size and other non-zero "
            f"dimensions for input, but got: {list(shape)}"
        )


def _padded(self: Any, padding: Sequence[Any]) -> TensorMeta:
    shape = list(self.shape)
    for axis in range(len(padding) // 2):
        dim = len(shape) - 1 - axis
        shape[dim] = shape[dim] + padding[2 * axis] + padding[2 * axis + 1]
        if shape[dim] < 1:
            raise RuntimeError(f"input {list(self.shape)} is too small for padding {list(padding)}")
    return fresh(shape, self, stride=suggested_strides(tuple(self.shape), self.stride(), tuple(shape)))


def _check_grid(input: Any, grid: Any, rank: int) -> None:
    sizes = f"but got input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
    if len(input.shape) != rank + 2 or len(grid.shape) != rank + 2:
        raise RuntimeError(
            f"grid_sampler(): expected {rank + 2}D input and grid with same number of dimensions, {sizes}"
        )
    if not holds(input.shape[0] == grid.shape[0]):
        raise RuntimeError(f"grid_sampler(): expected grid and input to have same batch size, {sizes}")
    if not holds(grid.shape[-1] == rank):
        raise RuntimeError(f"grid_sampler(): expected grid to have size {rank} in last dimension, {sizes}")
    if has_zero(input.shape[2:]):
        raise RuntimeError(f"grid_sampler(): expected input to have non-empty spatial dimensions, {sizes}")


@shape_rule(*overloads("grid_sampler_2d"), tags=("index",))
def grid_sampler_2d(input: Any, grid: Any, *_modes: Any) -> TensorMeta:
    _check_grid(input, grid, 2)
    return fresh((*input.shape[:2], grid.shape[1], grid.shape[2]), input)


@shape_rule(*overloads("grid_sampler_3d"), tags=("index",))
def grid_sampler_3d(input: Any, grid: Any, *_modes: Any) -> TensorMeta:
    _check_grid(input, grid, 3)
    return fresh((*input.shape[:2], *grid.shape[1:4]), input)
