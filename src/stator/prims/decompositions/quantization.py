"""Decompositions of the operators between floats and quantized integers in graphs of torch's and torchao's flows of
quantization. torch defines them when a program imports these flows."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import decompositions_by_name

aten = torch.ops.aten

_NAMESPACE = "quantized_decomposed"
_register = decompositions_by_name.register


@_register(f"{_NAMESPACE}::quantize_per_tensor")
def quantize_per_tensor(
    input: Any, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Any:
    """As eager, multiply by the inverse, and add the zero point after rounding."""
    return _quantized(input, 1.0 / scale, zero_point, quant_min, quant_max, dtype) if scale else NotImplemented


@_register(f"{_NAMESPACE}::quantize_per_tensor.tensor")
def quantize_per_tensor_tensor(
    input: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Any:
    """Eager reads both as Python numbers, which it converts to the dtype of the input."""
    inverse = aten.reciprocal.default(_number(scale, torch.float64))
    return _quantized(
        input, _to(inverse, torch.float32), _number(zero_point, torch.float32), quant_min, quant_max, dtype
    )


@_register(f"{_NAMESPACE}::quantize_per_channel")
def quantize_per_channel(
    input: Any, scales: Any, zero_points: Any, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Any:
    inverse = aten.reciprocal.default(_along(scales, input, axis))
    return _quantized(input, inverse, _along(zero_points, input, axis), quant_min, quant_max, dtype)


@_register(f"{_NAMESPACE}::dequantize_per_tensor")
def dequantize_per_tensor(
    input: Any,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Any:
    if input.dtype is not dtype:
        return NotImplemented  # eager raises
    return aten.mul.Tensor(aten.sub.Tensor(_to(input, out_dtype or torch.float32), zero_point), scale)


@_register(f"{_NAMESPACE}::dequantize_per_tensor.tensor")
def dequantize_per_tensor_tensor(
    input: Any,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Any:
    if input.dtype is not dtype:
        return NotImplemented
    computed = out_dtype or torch.float32
    shifted = aten.sub.Tensor(_to(input, computed), _number(zero_point, computed))
    return aten.mul.Tensor(shifted, _number(scale, computed))


@_register(f"{_NAMESPACE}::dequantize_per_channel")
def dequantize_per_channel(
    input: Any,
    scales: Any,
    zero_points: Any,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Any:
    if input.dtype is not dtype:
        return NotImplemented
    shifted = input if zero_points is None else aten.sub.Tensor(input, _along(zero_points, input, axis))
    return _to(aten.mul.Tensor(shifted, _along(scales, input, axis)), out_dtype or torch.float32)


def _quantized(input: Any, inverse: Any, zero_point: Any, least: int, most: int, dtype: torch.dtype) -> Any:
    rounded = aten.round.default(aten.mul.Tensor(_to(input, torch.float32), inverse))
    return _to(aten.clamp.default(aten.add.Tensor(rounded, zero_point), least, most), dtype)


def _along(values: Any, input: Any, axis: int) -> Any:
    """One value for each position of a dimension."""
    shape = [1] * len(input.shape)
    shape[axis] = values.shape[0]
    return aten.view.default(values, shape)


def _number(value: Any, dtype: torch.dtype) -> Any:
    """A tensor of one element as one without dimensions."""
    return _to(aten.view.default(value, []), dtype)


def _to(input: Any, dtype: torch.dtype) -> Any:
    return input if input.dtype is dtype else aten._to_copy.default(input, dtype=dtype)
