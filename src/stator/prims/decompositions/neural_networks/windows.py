"""Pooling over windows of any rank: separable sums, positions of maxima, and windows laid out as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import cast, decomposes, iota
from stator.prims.shape_rules.neural_networks.convolution import per_spatial_dim
from stator.prims.shape_rules.neural_networks.pooling import pooled_size

aten = torch.ops.aten


def adaptive_places(size: Any, target: Any, like: Any) -> tuple[Any, Any]:
    """Return, for each result position, the elements of its window (equally many for all), and the mask of those that
    count: from floor(i n / m) up to ceil((i + 1) n / m)."""
    number = iota(target, like)
    start = aten.div.Tensor_mode(aten.mul.Tensor(number, size), target, rounding_mode="floor")
    end = aten.add.Tensor(aten.mul.Tensor(aten.add.Tensor(number, 1), size), target - 1)
    end = aten.div.Tensor_mode(end, target, rounding_mode="floor")
    most = 1 if size == target else -(-size // target) + (0 if size % target == 0 else 1)
    places = aten.add.Tensor(aten.unsqueeze.default(start, 1), iota(most, like))
    counts = aten.lt.Tensor(places, aten.unsqueeze.default(end, 1))
    return aten.clamp_max.default(places, size - 1), counts


@decomposes("_adaptive_avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool3d")
def adaptive_avg_pool(self: Any, output_size: Sequence[Any]) -> Any:
    """The mean over the window, dimension by dimension, the innermost first."""
    rank = len(output_size)
    if 0 in tuple(self.shape[-rank:]) or 0 in tuple(output_size) or not self.dtype.is_floating_point:
        return NotImplemented
    if all(target == 1 for target in output_size):
        return aten.mean.dim(self, list(range(-rank, 0)), True)
    result = self
    for dim in range(len(self.shape) - 1, len(self.shape) - 1 - rank, -1):
        target = output_size[dim - len(self.shape)]
        if target != self.shape[dim]:
            result = adaptive_mean(result, dim, target)
    return aten.clone.default(self) if result is self else result


def adaptive_mean(self: Any, dim: int, target: Any) -> Any:
    places, counts = adaptive_places(self.shape[dim], target, self)
    windows = aten.index.Tensor(self, [*[None] * dim, places])
    behind = [1] * (len(self.shape) - 1 - dim)
    kept = aten.view.default(counts, [*counts.shape, *behind])
    total = aten.sum.dim_IntList(aten.where.ScalarOther(kept, windows, 0.0), [dim + 1])
    number = aten.view.default(aten.sum.dim_IntList(counts, [1]), [target, *behind])
    return aten.div.Tensor(total, number)


def _avg_pool(rank: int) -> None:
    @decomposes(f"avg_pool{rank}d")
    def avg_pool(
        self: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        """Divide the sum of each window by the number of its counted elements; integers are divided as in C."""
        if self.dtype.is_complex or 0 in tuple(self.shape[-rank:]):
            return NotImplemented
        kernel, pad = per_spatial_dim(kernel_size, rank), per_spatial_dim(padding, rank)
        step = per_spatial_dim(stride, rank) if stride not in (None, (), []) else kernel
        total, divisor = window_sums(self, kernel, step, pad, ceil_mode, count_include_pad)
        divisor = divisor if divisor_override is None else divisor_override
        if self.dtype.is_floating_point:
            return aten.div.Tensor(total, divisor)
        return aten.div.Tensor_mode(total, divisor, rounding_mode="trunc")


_avg_pool(2)
_avg_pool(3)


def window_sums(
    self: Any, kernel: Sequence[Any], step: Sequence[Any], pad: Sequence[Any], ceil_mode: bool, count_include_pad: bool
) -> tuple[Any, Any]:
    """Return the sum of each window, and the number of its elements that count; dimension by dimension, the innermost
    first."""
    rank = len(kernel)
    total: Any = self
    divisor: Any = None
    for axis in reversed(range(rank)):
        dim = len(self.shape) - rank + axis
        size = self.shape[dim]
        target = pooled_size(size, kernel[axis], step[axis], pad[axis], 1, ceil_mode)
        start = aten.sub.Tensor(aten.mul.Tensor(iota(target, self), step[axis]), pad[axis])
        places = aten.add.Tensor(aten.unsqueeze.default(start, 1), iota(kernel[axis], self))
        inside = aten.logical_and.default(aten.ge.Scalar(places, 0), aten.lt.Scalar(places, size))
        behind = [1] * (rank - 1 - axis)
        read = aten.index.Tensor(total, [*[None] * dim, aten.clamp.default(places, 0, size - 1)])
        kept = aten.view.default(inside, [target, kernel[axis], *behind])
        total = aten.sum.dim_IntList(aten.where.ScalarOther(kept, read, 0), [dim + 1], dtype=self.dtype)
        margin = pad[axis] if count_include_pad else 0
        end = aten.clamp_max.default(aten.add.Tensor(start, kernel[axis]), size + margin)
        counted = aten.view.default(aten.sub.Tensor(end, aten.clamp_min.default(start, -margin)), [target, *behind])
        divisor = counted if divisor is None else aten.mul.Tensor(divisor, counted)
    return total, divisor


# -- maxima -----------------------------------------------------------------------------------------------------------


def window_maxima(self: Any, places: Sequence[Any], counts: Sequence[Any]) -> Any:
    """Return the largest element of each window and its position in the flattened trailing dimensions: the first of
    several, but the last NaN. places[axis]: (results, window) clamped positions along a dimension; counts: the mask of
    real ones."""
    rank = len(places)
    before = len(self.shape) - rank
    targets = [one.shape[0] for one in places]
    widths = [one.shape[1] for one in places]
    shaped = [
        [
            aten.view.default(
                table,
                [
                    *(targets[axis] if axis == other else 1 for other in range(rank)),
                    *(widths[axis] if axis == other else 1 for other in range(rank)),
                ],
            )
            for axis, table in enumerate(tables)
        ]
        for tables in (places, counts)
    ]
    windows = aten.index.Tensor(self, [*[None] * before, *shaped[0]])
    real = shaped[1][0]
    flat = shaped[0][0]
    for axis in range(1, rank):
        real = aten.logical_and.default(real, shaped[1][axis])
        flat = aten.add.Tensor(aten.mul.Tensor(flat, self.shape[before + axis]), shaped[0][axis])
    merged = [*targets, math.prod(widths)]
    flat = aten.reshape.default(aten.expand.default(flat, [*targets, *widths]), merged)
    real = aten.reshape.default(aten.expand.default(real, [*targets, *widths]), merged)
    windows = aten.reshape.default(windows, [*self.shape[:before], *merged])
    lowest = -math.inf if self.dtype.is_floating_point else torch.iinfo(self.dtype).min
    windows = aten.where.ScalarOther(real, windows, lowest)
    largest = aten.amax.default(windows, [-1], True)
    first = aten.argmax.default(windows, -1, True)
    first_real = aten.argmax.default(cast(real, torch.int64), -1, True)
    first = aten.where.self(aten.eq.Scalar(largest, lowest), first_real, first)
    if self.dtype.is_floating_point:
        nan = aten.ne.Tensor(windows, windows)
        order = aten.where.ScalarOther(nan, iota(merged[-1], self), -1)
        last_nan = aten.amax.default(order, [-1], True)
        first = aten.where.self(aten.ge.Scalar(last_nan, 0), last_nan, first)
    values = aten.squeeze.dim(aten.gather.default(windows, -1, first), -1)
    spread = aten.expand.default(flat, [*self.shape[:before], *merged])
    return values, aten.squeeze.dim(aten.gather.default(spread, -1, first), -1)


@decomposes("max_pool2d_with_indices max_pool3d_with_indices", wide=False)
def max_pool_with_indices(
    self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    rank = 3 if len(each_or_none(kernel_size)) == 3 or len(self.shape) == 5 else 2
    return max_pool(self, rank, kernel_size, stride, padding, dilation, ceil_mode)


def each_or_none(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else ()


def max_pool(self: Any, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    if self.dtype is torch.bool or 0 in tuple(self.shape[-rank:]):
        return NotImplemented
    kernel, pad, spread = (
        per_spatial_dim(kernel_size, rank),
        per_spatial_dim(padding, rank),
        per_spatial_dim(dilation, rank),
    )
    step = per_spatial_dim(stride, rank) if stride not in (None, (), []) else kernel
    places, counts = [], []
    for axis in range(rank):
        size = self.shape[axis - rank]
        target = pooled_size(size, kernel[axis], step[axis], pad[axis], spread[axis], ceil_mode)
        start = aten.sub.Tensor(aten.mul.Tensor(iota(target, self), step[axis]), pad[axis])
        offsets = aten.mul.Tensor(iota(kernel[axis], self), spread[axis])
        place = aten.add.Tensor(aten.unsqueeze.default(start, 1), offsets)
        counts.append(aten.logical_and.default(aten.ge.Scalar(place, 0), aten.lt.Scalar(place, size)))
        places.append(aten.clamp.default(place, 0, size - 1))
    return window_maxima(self, places, counts)


@decomposes("adaptive_max_pool2d adaptive_max_pool3d", wide=False)
def adaptive_max_pool(self: Any, output_size: Sequence[Any]) -> Any:
    rank = len(output_size)
    if 0 in tuple(self.shape[-rank:]) or 0 in tuple(output_size):
        return NotImplemented
    tables = [adaptive_places(self.shape[axis - rank], output_size[axis], self) for axis in range(rank)]
    return window_maxima(self, [places for places, _ in tables], [counts for _, counts in tables])


@decomposes("max_unpool2d max_unpool3d", wide=False)
def max_unpool(self: Any, indices: Any, output_size: Sequence[Any], *_geometry: Any) -> Any:
    """Zeros, with the pooled values at their original positions."""
    if 0 in tuple(self.shape) or 0 in tuple(output_size):
        return NotImplemented
    rank = len(output_size)
    leading = list(self.shape[: len(self.shape) - rank])
    flat = aten.full.default([*leading, math.prod(output_size)], 0, dtype=self.dtype, device=self.device)
    source = aten.reshape.default(self, [*leading, -1])
    places = aten.reshape.default(indices, [*leading, -1])
    filled = aten.scatter.src(flat, len(leading), places, source)
    return aten.view.default(filled, [*leading, *output_size])


@decomposes("im2col", wide=False)
def im2col(self: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Lay out windows of the padded image as columns: (batch, channels x window, windows)."""
    if 0 in tuple(self.shape[-2:]):
        return NotImplemented
    padded = aten.constant_pad_nd.default(self, [padding[1], padding[1], padding[0], padding[0]], 0)
    batch = list(self.shape[:-2])
    places = []
    for axis in range(2):
        target = pooled_size(
            self.shape[axis - 2], kernel_size[axis], stride[axis], padding[axis], dilation[axis], False
        )
        offsets = aten.mul.Tensor(iota(kernel_size[axis], self), dilation[axis])
        starts = aten.mul.Tensor(iota(target, self), stride[axis])
        places.append(aten.add.Tensor(aten.unsqueeze.default(offsets, 1), starts))
    rows = aten.view.default(places[0], [kernel_size[0], 1, places[0].shape[1], 1])
    columns = aten.view.default(places[1], [1, kernel_size[1], 1, places[1].shape[1]])
    windows = aten.index.Tensor(padded, [*[None] * len(batch), rows, columns])
    count = kernel_size[0] * kernel_size[1]
    return aten.reshape.default(windows, [*batch[:-1], batch[-1] * count, places[0].shape[1] * places[1].shape[1]])
