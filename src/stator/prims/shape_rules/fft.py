"""Shape rules of Fourier transforms: sizes, and the layouts of MKL's and pocketfft's wrappers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import Sizes, contiguous_strides, preserved_strides, wrap_dims
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.type_promotion import COMPLEX_OF_REAL, REAL_OF_COMPLEX

from .operands import fresh, overloads

FFT = ("fft",)


def by_stride(strides: Sizes, dims: Sequence[int]) -> list[int]:
    """Return the dimensions from the slowest to the fastest by a stable insertion sort."""
    order: list[int] = []
    for dim in dims:
        position = len(order)
        while position and strides[order[position - 1]] < strides[dim]:
            position -= 1
        order.insert(position, dim)
    return order


def without(rank: int, dims: Sequence[int]) -> list[int]:
    """Return the other dimensions, in the order of ATen's partition by swapping."""
    order = list(range(rank))
    first, last = 0, rank
    while True:
        while first != last and order[first] not in dims:
            first += 1
        last -= 1
        while first < last and order[last] in dims:
            last -= 1
        if first >= last:
            return order[:first]
        order[first], order[last] = order[last], order[first]
        first += 1


def transformed_strides(strides: Sizes, result: Sizes, dims: Sequence[int]) -> Sizes:
    """Return the strides of a result that was computed with one batch dimension (the untransformed dimensions, by their
    input strides) followed by the transformed dimensions in the given order."""
    rank = len(result)
    order = [*by_stride(strides, without(rank, dims)), *dims]
    dense = contiguous_strides([result[dim] for dim in order])
    placed = dict(zip(order, dense, strict=True))
    return tuple(placed[dim] for dim in range(rank))


def transformed(self: Any, strides: Sizes, shape: Sizes, dtype: torch.dtype, dims: Sequence[int]) -> TensorMeta:
    if not torch.backends.mkl.is_available():
        return fresh(shape, self, dtype)
    return fresh(shape, self, dtype, transformed_strides(strides, shape, dims))


@shape_rule(*overloads("_fft_c2c"), tags=FFT)
def fft_c2c(self: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    if self.device.type != "cpu":
        return NotImplemented
    shape, strides = tuple(self.shape), self.stride()
    if not dim:
        return fresh(shape, self, stride=preserved_strides(shape, strides))
    return transformed(self, strides, shape, self.dtype, by_stride(strides, wrap_dims(dim, len(shape))))


@shape_rule(*overloads("_fft_r2c"), tags=FFT)
def fft_r2c(self: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    if self.device.type != "cpu":
        return NotImplemented
    shape, strides = tuple(self.shape), self.stride()
    *others, last = wrap_dims(dim, len(shape))
    half = (*shape[:last], shape[last] // 2 + 1, *shape[last + 1 :]) if onesided else shape
    return transformed(self, strides, half, COMPLEX_OF_REAL[self.dtype], [*by_stride(strides, others), last])


@shape_rule(*overloads("_fft_c2r"), tags=FFT)
def fft_c2r(self: Any, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Any:
    """A complex transform of all dimensions but the last, then a complex-to-real one of the last."""
    if self.device.type != "cpu":
        return NotImplemented
    shape, strides = tuple(self.shape), self.stride()
    *others, last = wrap_dims(dim, len(shape))
    if others and torch.backends.mkl.is_available():
        strides = transformed_strides(strides, shape, by_stride(strides, others))
    result = (*shape[:last], last_dim_size, *shape[last + 1 :])
    return transformed(self, strides, result, REAL_OF_COMPLEX[self.dtype], [last])
