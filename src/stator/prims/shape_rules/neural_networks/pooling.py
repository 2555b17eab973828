"""Shape rules of pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.prims.layout import Sizes, contiguous_strides, has_zero, holds, suggested_strides, surely
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.operands import fresh, overloads, shape_table

from .convolution import per_spatial_dim

aten = torch.ops.aten
POOL = ("reduction",)


def pooled_size(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    """Return the number of windows: (n + 2p - d(k - 1) - 1) / s + 1, rounded up in ceil mode unless the last window
    starts in the padding."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if ceil_mode:
        count = (span + stride - 1) // stride + 1
        if (count - 1) * stride >= size + padding:
            count = count - 1
        return count
    return span // stride + 1


def pooled_shape(
    self: Any, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Sizes:
    """Only the batch, the first of rank + 2 dimensions, may be empty."""
    shape = tuple(self.shape)
    refuse_if(len(shape) not in (rank + 1, rank + 2) or has_zero(shape[len(shape) - rank - 1 :]))
    kernel = per_spatial_dim(kernel_size, rank)
    step = per_spatial_dim(stride, rank) if stride not in (None, (), []) else kernel
    pad, spread = per_spatial_dim(padding, rank), per_spatial_dim(dilation, rank)
    sizes = []
    for i in range(rank):
        refuse_if(step[i] == 0 or pad[i] < 0 or spread[i] <= 0 or pad[i] * 2 > kernel[i])
        size = pooled_size(shape[len(shape) - rank + i], kernel[i], step[i], pad[i], spread[i], ceil_mode)
        refuse_if(size < 1)
        sizes.append(size)
    return (*shape[: len(shape) - rank], *sizes)


def pooled(self: Any, shape: Sizes, dtype: torch.dtype | None = None) -> TensorMeta:
    return fresh(shape, self, dtype, suggested_strides(tuple(self.shape), self.stride(), shape))


def with_positions(values: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    return values, replace(values, dtype=torch.int64)


def _max_pool(rank: int) -> None:
    @shape_rule(*overloads(f"max_pool{rank}d_with_indices"), tags=POOL)
    def max_pool_with_indices(
        self: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> tuple[TensorMeta, TensorMeta]:
        return with_positions(pooled(self, pooled_shape(self, rank, kernel_size, stride, padding, dilation, ceil_mode)))


_max_pool(2)
_max_pool(3)


def _avg_pool(rank: int) -> None:
    @shape_rule(*overloads(f"avg_pool{rank}d"), tags=POOL)
    def avg_pool(
        self: Any,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> TensorMeta:
        refuse_if(divisor_override == 0)
        shape = pooled_shape(self, rank, kernel_size, stride, padding, 1, ceil_mode)
        return pooled(self, shape) if rank == 2 else fresh(shape, self)


_avg_pool(2)
_avg_pool(3)


def adaptive_shape(self: Any, output_size: Sequence[Any]) -> Sizes:
    shape = tuple(self.shape)
    return (*shape[: len(shape) - len(output_size)], *output_size)


def is_mean(output_size: Sequence[Any]) -> bool:
    """Whether eager computes this adaptive average as a mean, which takes empty tensors, too."""
    return all(surely(size == 1) for size in output_size)


def adaptive_pool2d(self: Any, output_size: Sequence[Any]) -> TensorMeta:
    return pooled(self, adaptive_shape(self, output_size))


def adaptive_pool3d(self: Any, output_size: Sequence[Any]) -> TensorMeta:
    return fresh(adaptive_shape(self, output_size), self)


@shape_rule(*overloads("_adaptive_avg_pool2d adaptive_avg_pool2d"), tags=POOL)
def adaptive_avg_pool2d(self: Any, output_size: Sequence[Any]) -> TensorMeta:
    refuse_if(not is_mean(output_size) and has_zero(self.shape[-2:]))
    return adaptive_pool2d(self, output_size)


@shape_rule(*overloads("_adaptive_avg_pool3d adaptive_avg_pool3d"), tags=POOL)
def adaptive_avg_pool3d(self: Any, output_size: Sequence[Any]) -> TensorMeta:
    refuse_if(not is_mean(output_size) and has_zero(self.shape[1:]))
    return adaptive_pool3d(self, output_size)


@shape_rule(*overloads("adaptive_max_pool2d"), tags=POOL)
def adaptive_max_pool2d(self: Any, output_size: Sequence[Any]) -> tuple[TensorMeta, TensorMeta]:
    refuse_if(has_zero(self.shape[1:]))
    return with_positions(adaptive_pool2d(self, output_size))


@shape_rule(*overloads("adaptive_max_pool3d"), tags=POOL)
def adaptive_max_pool3d(self: Any, output_size: Sequence[Any]) -> tuple[TensorMeta, TensorMeta]:
    refuse_if(has_zero(self.shape[1:]))
    return with_positions(adaptive_pool3d(self, output_size))


@shape_rule(*overloads("fractional_max_pool2d fractional_max_pool3d"), tags=POOL)
def fractional_max_pool(
    self: Any, kernel_size: Any, output_size: Sequence[Any], random_samples: Any
) -> tuple[TensorMeta, TensorMeta]:
    rank = len(output_size)
    refuse_if(has_zero(self.shape[-rank:]))
    return with_positions(adaptive_pool3d(self, output_size))


def _require_position_of_each(self: Any, indices: Any) -> None:
    own, given = tuple(self.shape), tuple(indices.shape)
    refuse_if(len(own) != len(given) or not all(holds(a == b) for a, b in zip(own, given, strict=True)))


@shape_rule(*overloads("max_unpool2d"), tags=("scatter",))
def max_unpool2d(self: Any, indices: Any, output_size: Sequence[Any]) -> TensorMeta:
    _require_position_of_each(self, indices)
    return adaptive_pool2d(self, output_size)


@shape_rule(*overloads("max_unpool3d"), tags=("scatter",))
def max_unpool3d(self: Any, indices: Any, output_size: Sequence[Any], *_geometry: Any) -> TensorMeta:
    _require_position_of_each(self, indices)
    return adaptive_pool3d(self, output_size)


@shape_rule(*overloads("im2col"), tags=("index",))
def im2col(self: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> TensorMeta:
    shape = tuple(self.shape)
    refuse_if(has_zero(shape[-3:]))
    blocks = [pooled_size(shape[i - 2], kernel_size[i], stride[i], padding[i], dilation[i], False) for i in range(2)]
    refuse_if(not all(holds(count >= 1) for count in blocks))
    windows = blocks[0] * blocks[1]
    result = (*shape[:-3], shape[-3] * kernel_size[0] * kernel_size[1], windows)
    return TensorMeta(result, contiguous_strides(result), self.dtype, self.device)


@shape_rule(*overloads("col2im"), tags=("scatter",))
def col2im(self: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> TensorMeta:
    shape = tuple(self.shape)
    return fresh((*shape[:-2], shape[-2] // (kernel_size[0] * kernel_size[1]), *output_size), self)


shape_table(
    POOL,
    {
        "max_pool1d": lambda self, kernel, stride=(), padding=0, dilation=1, ceil=False: fresh(
            pooled_shape(self, 1, kernel, stride, padding, dilation, ceil), self
        ),
        "max_pool2d": lambda self, kernel, stride=(), padding=0, dilation=1, ceil=False: pooled(
            self, pooled_shape(self, 2, kernel, stride, padding, dilation, ceil)
        ),
    },
)
