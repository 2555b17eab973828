"""Decompositions of the operators between floats and quantized integers in graphs of torch's and torchao's flows of
quantization. torch defines them when a program imports these flows."""

from __future__ import annotations

import functools
from typing import Any

import torch

from stator.prims.record import decompositions_by_name

from .decomposition_decorator import decomposes

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


# ---- products with packed weights

# ATen's kernels multiply each row in turn. Those of bfloat16 are quick for a few rows: by int4 weights, so many take as
# long as a pass that dequantizes the weight, and a product. Of other dtypes they are slow throughout.
_INT4_ROWS = 32
_BLOCK = 64


@decomposes("_weight_int4pack_mm_for_cpu", wide=False)
def weight_int4pack_mm_for_cpu(self: Any, mat2: Any, group_size: int, scale_and_zeros: Any) -> Any:
    """Unpack and dequantize the matrix, then multiply: (number - 8) * scale + zero, for groups of a column."""
    columns, inner = mat2.shape[0], self.shape[1]
    known = type(columns) is int and type(inner) is int and columns % _BLOCK == 0 and inner % group_size == 0
    if not known or _suits_aten(self, _INT4_ROWS) or mat2.dtype is not torch.uint8 or not _packs_blocks():
        return NotImplemented
    # cat stores pairs of scale and zero apart, which are read once for each row
    parts = [_to(aten.select.int(scale_and_zeros, 2, at), torch.float32) for at in (0, 1)]
    pairs = aten.view.default(aten.cat.default(parts), [2, inner // group_size, 1, columns // _BLOCK, 2, _BLOCK // 2])
    dequantized = []
    for at, numbers in enumerate(_halves(mat2, inner)):
        scale, zero = (aten.narrow.default(aten.select.int(pairs, 0, part), 3, at, 1) for part in (0, 1))
        grouped = aten.view.default(numbers, [inner // group_size, group_size, *numbers.shape[1:]])
        centered = _to(aten.sub.Tensor(_to(grouped, torch.int32), 8), torch.float32)
        dequantized.append(_to(aten.add.Tensor(aten.mul.Tensor(centered, scale), zero), self.dtype))
    return aten.mm.default(self, aten.view.default(aten.cat.default(dequantized, 3), [inner, columns]))


def _halves(packed: Any, inner: int) -> list[Any]:
    """Numbers up to 15 of the first and the last 32 of each 64 columns: [inner, blocks, 1, 32]. Bytes have the first in
    their lower halves."""
    blocks = aten.view.default(packed, [packed.shape[0] // _BLOCK, inner, 1, _BLOCK // 2])
    rows = aten.permute.default(blocks, [1, 0, 2, 3])
    return [aten.bitwise_and.Scalar(rows, 15), aten.bitwise_right_shift.Tensor_Scalar(rows, 4)]


@functools.cache
def _packs_blocks() -> bool:
    """Return whether ATen packs int4 weights in this layout here: it depends on the processor."""
    with torch.no_grad(), torch._C._InferenceMode(False), torch._C._DisableTorchDispatch():
        numbers = (torch.arange(2 * _BLOCK * 32, dtype=torch.int32, device="cpu") * 7 // 3 % 16).view(2 * _BLOCK, 32)
        packed = aten._convert_weight_to_int4pack_for_cpu.default(numbers, 1)
        return packed.numel() == numbers.numel() // 2 and torch.equal(
            torch.cat(_halves(packed, 32), 2).reshape(32, -1), numbers.t()
        )


@decomposes("_weight_int8pack_mm", wide=False)
def weight_int8pack_mm(self: Any, mat2: Any, scales: Any) -> Any:
    if self.device.type != "cpu" or _suits_aten(self, many=1):
        return NotImplemented
    return aten.mul.Tensor(aten.mm.default(self, aten.t.default(_to(mat2, self.dtype))), scales)


def _suits_aten(rows: Any, many: int) -> bool:
    return rows.dtype is torch.bfloat16 and not (type(rows.shape[0]) is int and rows.shape[0] >= many)
