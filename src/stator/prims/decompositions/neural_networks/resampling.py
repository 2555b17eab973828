"""Interpolation, and padding by reflection and replication: gathers at computed positions, and arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import cast, decomposes, decomposition_table, iota
from stator.prims.layout import always_equal, is_channels_last, is_unknown
from stator.prims.shape_rules.neural_networks.convolution import per_spatial_dim

aten = torch.ops.aten
_LONG_PIXEL = 16  # channels


def scale_of(scale: float | None, size: Any, target: Any) -> float:
    """Return the number of source pixels per target pixel."""
    return 1.0 / scale if scale is not None and scale > 0 else size / target


def unless_repeated(
    sizes: Sequence[Any], output_size: Sequence[Any], scales: Sequence[float | None], shift: float, like: Any
) -> list[float | None]:
    """Drop the scales of dimensions in which each element is read once, or each twice: kernels of CPUs that begin at
    the first element (no `shift`) read their scale from the sizes then."""
    if shift or like.device.type != "cpu":
        return list(scales)
    return [
        None if scale is not None and (target == size or target == 2 * size) else scale
        for size, target, scale in zip(sizes, output_size, scales, strict=True)
    ]


def nearest_places(
    sizes: Sequence[Any], output_size: Sequence[Any], scales: Sequence[float | None], shift: float, like: Any
) -> list[Any]:
    """Return, for each dimension, the element that each result position reads, shaped to broadcast against the
    others."""
    places = []
    rank = len(output_size)
    for axis, (size, target, scale) in enumerate(zip(sizes, output_size, scales, strict=True)):
        position = cast(iota(target, like), torch.float32)
        if shift:
            position = aten.add.Tensor(position, shift)
        index = cast(aten.floor.default(aten.mul.Tensor(position, scale_of(scale, size, target))), torch.int64)
        index = aten.clamp_max.default(index, size - 1)
        places.append(aten.view.default(index, [target if dim == axis else 1 for dim in range(rank)]))
    return places


def nearest(self: Any, output_size: Sequence[Any], scales: Sequence[float | None], shift: float) -> Any:
    sizes = list(self.shape)[2:]
    if len(sizes) == 2:  # eager's kernels of one and three dimensions take the scale as it is
        scales = unless_repeated(sizes, output_size, scales, shift, self)
    places = nearest_places(sizes, output_size, scales, shift, self)
    return aten.index.Tensor(self, [None, None, *places])


def scales_of(output_size: Sequence[Any], scales: Sequence[Any], named: dict[str, Any]) -> list[float | None]:
    given = [*scales, *named.values()]
    return given if len(given) == len(output_size) else [None] * len(output_size)


@decomposes("upsample_linear1d upsample_bilinear2d upsample_trilinear3d")
def upsample_linear(self: Any, output_size: Sequence[Any], align_corners: bool, *scales: Any, **named: Any) -> Any:
    """Interpolate between two neighbours, dimension by dimension, the innermost first. Of channels-last images, all
    neighbours are read at once: neighbouring channels share their places, so that reading twice as many pixels takes
    less time than a pass over a result of one dimension."""
    if self.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    given = scales_of(output_size, scales, named)
    result = self
    rank = len(output_size)
    if _has_long_pixels(self, output_size):
        places = [
            linear_places(self.shape[axis + 2], target, align_corners, given[axis], self)
            for axis, target in enumerate(output_size)
        ]

        def between(axis: int, chosen: list[Any]) -> Any:
            if axis == rank:
                return aten.index.Tensor(self, [None, None, *chosen])
            shape = [-1, *[1] * (rank - 1 - axis)]
            low, high, weight = (aten.view.default(one, shape) for one in places[axis])
            first, second = (between(axis + 1, [*chosen, one]) for one in (low, high))
            return aten.add.Tensor(
                aten.mul.Tensor(first, aten.rsub.Scalar(weight, 1.0)), aten.mul.Tensor(second, weight)
            )

        return between(0, [])
    for axis in range(rank - 1, -1, -1):
        size, target = self.shape[axis + 2], output_size[axis]
        if keeps_size(size, target, given[axis]):
            continue
        may_be_equal = type(size) is not int or type(target) is not int
        low, high, weight = linear_places(size, target, align_corners, given[axis], self)
        weight = aten.view.default(weight, [-1, *[1] * (rank - 1 - axis)])
        before: list[Any] = [None] * (axis + 2)
        first, second = aten.index.Tensor(result, [*before, low]), aten.index.Tensor(result, [*before, high])
        shares = aten.mul.Tensor(first, aten.rsub.Scalar(weight, 1.0)), aten.mul.Tensor(second, weight)
        result = aten.add.Tensor(shares[0], unless_equal(size, target, shares[1]) if may_be_equal else shares[1])
    return result if result is not self else aten.clone.default(self)


def keeps_size(size: Any, target: Any, scale: float | None) -> bool:
    """Whether a dimension keeps its size, and its elements, in all calls. Asks only where a scale is given: without
    one, the places of equal sizes are those of the elements."""
    if scale is None or is_unknown(size) or is_unknown(target):
        return always_equal(size, target)
    return bool(size == target)


def _has_long_pixels(x: Any, output_size: Sequence[Any]) -> bool:
    """True for channels-last images on CPUs, of constant sizes, of which every dimension changes."""
    sizes = (*x.shape, *output_size)
    if len(output_size) != 2 or x.device.type != "cpu" or not all(isinstance(size, int) for size in sizes):
        return False
    if x.shape[1] < _LONG_PIXEL or any(a == b for a, b in zip(x.shape[2:], output_size, strict=True)):
        return False
    return is_channels_last(tuple(x.shape), tuple(x.stride()))


def unless_equal(size: Any, target: Any, share: Any) -> Any:
    """Return the share of the second neighbour, which does not count, even if infinite, if the size does not change."""
    gap = aten.full.default([1], size - target, dtype=torch.int64, device=share.device)
    return aten.where.ScalarSelf(aten.eq.Scalar(gap, 0), 0.0, share)


def linear_places(size: Any, target: Any, align_corners: bool, scale: float | None, like: Any) -> tuple[Any, Any, Any]:
    """Return the two neighbours that each position along a dimension reads, and the weight of the second."""
    working = like.dtype
    position = cast(iota(target, like), working)
    if align_corners:
        position = aten.mul.Tensor(position, (size - 1) / (target - 1) if target > 1 else 0.0)
    else:
        scaled = aten.mul.Tensor(aten.add.Tensor(position, 0.5), scale_of(scale, size, target))
        position = aten.clamp_min.default(aten.sub.Tensor(scaled, 0.5), 0.0)
    low = aten.clamp_max.default(cast(position, torch.int64), size - 1)
    high = aten.clamp_max.default(aten.add.Tensor(low, 1), size - 1)
    return low, high, aten.clamp.default(aten.sub.Tensor(position, low), 0.0, 1.0)


@decomposes("max_pool1d", wide=False)
def max_pool1d(
    self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    """Pool an image of height 1. Eager's result is contiguous, unlike that of pooling the image."""
    kernel, pad, spread = (
        per_spatial_dim(kernel_size, 1)[0],
        per_spatial_dim(padding, 1)[0],
        per_spatial_dim(dilation, 1)[0],
    )
    step = per_spatial_dim(stride, 1)[0] if stride not in ((), []) else kernel
    image = aten.unsqueeze.default(self, -2)
    result, _ = aten.max_pool2d_with_indices.default(image, [1, kernel], [1, step], [0, pad], [1, spread], ceil_mode)
    return aten.squeeze.dim(result, -2)


Place = Callable[[Any, Any], Any]


def gathered(self: Any, padding: Sequence[Any], place: Place) -> Any:
    """Gather along each padded dimension. `place(position, size)` maps positions from -left to size + right - 1 to
    elements."""
    result = self
    rank = len(self.shape)
    for step in range(len(padding) // 2):
        left, right = padding[2 * step], padding[2 * step + 1]
        dim = rank - 1 - step
        size = self.shape[dim]
        if left == 0 and right == 0:
            continue
        position = aten.arange.start_step(-left, size + right, 1, dtype=torch.int64, device=self.device)
        result = aten.index.Tensor(result, [*[None] * dim, place(position, size)])
    result = aten.clone.default(self) if result is self else result
    return result


def nothing_to_read(self: Any, padding: Sequence[Any]) -> bool:
    """Whether a padded dimension is empty."""
    return 0 in tuple(self.shape[-(len(padding) // 2) :])


def replicated(position: Any, size: Any) -> Any:
    return aten.clamp.default(position, 0, size - 1)


def reflected(position: Any, size: Any) -> Any:
    """Reflect positions without repeating the border."""
    inner = aten.rsub.Scalar(aten.abs.default(position), size - 1)
    return aten.rsub.Scalar(aten.abs.default(inner), size - 1)


NEAREST = "upsample_nearest1d upsample_nearest2d upsample_nearest3d"
NEAREST_EXACT = "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d"
decomposition_table(
    {
        NEAREST: lambda self, sizes, *scales, **named: nearest(self, sizes, scales_of(sizes, scales, named), 0.0),
        NEAREST_EXACT: lambda self, sizes, *scales, **named: nearest(self, sizes, scales_of(sizes, scales, named), 0.5),
        "replication_pad1d replication_pad2d replication_pad3d": lambda self, padding: (
            NotImplemented if nothing_to_read(self, padding) else gathered(self, padding, replicated)
        ),
        "reflection_pad1d reflection_pad2d reflection_pad3d": lambda self, padding: (
            NotImplemented if nothing_to_read(self, padding) else gathered(self, padding, reflected)
        ),
    },
    wide=False,
)
