"""The operators of torch's flows of quantization equal eager's, computed in loops instead of by the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from tests.differential import EXACT, FUSED, NARROW, assert_same

import stator
from stator.base import counters
from stator.prims.decompositions import quantization

quantized = torch.ops.quantized_decomposed

# The last bit of a quotient may move a number across the border between two integers.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "tensor": lambda x, s, z: quantized.quantize_per_tensor(x, 0.0625, 3, -100, 100, torch.int8),
    "tensor, rounded scale": lambda x, s, z: quantized.quantize_per_tensor(x, 0.037, 128, 0, 255, torch.uint8),
    "tensor, int32": lambda x, s, z: quantized.quantize_per_tensor(x, 1e-3, -7, -(2**31), 2**31 - 1, torch.int32),
    "tensor by tensors": lambda x, s, z: quantized.quantize_per_tensor.tensor(x, s[1:2], z[1:2], 0, 255, torch.uint8),
    "rows": lambda x, s, z: quantized.quantize_per_channel(x, s, z, 0, 0, 255, torch.uint8),
    "columns": lambda x, s, z: quantized.quantize_per_channel(x.transpose(0, 1), s, z, 1, 0, 255, torch.uint8),
    "there and back": lambda x, s, z: quantized.dequantize_per_tensor(
        quantized.quantize_per_tensor(x, 0.037, 128, 0, 255, torch.uint8), 0.037, 128, 0, 255, torch.uint8
    ),
    "there and back by tensors": lambda x, s, z: quantized.dequantize_per_tensor.tensor(
        quantized.quantize_per_tensor.tensor(x, s[:1], z[:1], 0, 255, torch.uint8), s[:1], z[:1], 0, 255, torch.uint8
    ),
    "rows and back": lambda x, s, z: quantized.dequantize_per_channel(
        quantized.quantize_per_channel(x, s, z, 0, 0, 255, torch.uint8), s, z, 0, 0, 255, torch.uint8
    ),
    "without zero points": lambda x, s, z: quantized.dequantize_per_channel(
        (x * 10).to(torch.int8), s, None, 0, -128, 127, torch.int8
    ),
}


@pytest.mark.parametrize("scales", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_equal_eager(name: str, dtype: torch.dtype, scales: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (3 * torch.randn(7, 33, 5)).to(dtype)
    scale, zero_point = torch.rand(7).to(scales) + 0.01, torch.randint(0, 256, (7,))
    counters.clear()
    compiled = stator.compile(FUNCTIONS[name], fullgraph=True)
    assert_same(compiled(x, scale, zero_point), FUNCTIONS[name](x, scale, zero_point), EXACT)
    assert not [name for name in counters.counts if name.startswith("inductor_fallback:quantized")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dequantized_half_floats(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        zeros = torch.arange(7)
        by_channel = quantized.dequantize_per_channel(x, scale, zeros, 0, -128, 127, torch.int8, out_dtype=dtype)
        return [by_channel, quantized.dequantize_per_tensor(x, 0.037, 5, -128, 127, torch.int8, out_dtype=dtype)]

    x, scale = torch.randint(-128, 128, (7, 40), dtype=torch.int8), torch.rand(7)
    assert_same(stator.compile(function, fullgraph=True)(x, scale), function(x, scale), NARROW)


def packed_int4(x: torch.Tensor, packed: torch.Tensor, scale_and_zeros: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, 32, scale_and_zeros)


def packed_int8(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._weight_int8pack_mm(x, weight, scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(("columns", "inner"), [(64, 96), (192, 32), (48, 64)])
def test_products_with_packed_int4_weights(rows: int, columns: int, inner: int, dtype: torch.dtype) -> None:
    """Columns that are no multiple of 64 are packed otherwise."""
    torch.manual_seed(0)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (columns, inner)).int(), 1)
    x, scale_and_zeros = (
        torch.randn(rows, inner).to(dtype),
        ((torch.rand(inner // 32, columns, 2) - 0.3) / 50).to(dtype),
    )
    compiled = stator.compile(packed_int4, fullgraph=True)
    assert_same(compiled(x, packed, scale_and_zeros), packed_int4(x, packed, scale_and_zeros), FUSED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products_with_int8_weights(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 96).to(dtype), torch.randint(-128, 128, (64, 96), dtype=torch.int8)
    scales = (torch.rand(64) / 100).to(dtype)
    compiled = stator.compile(packed_int8, fullgraph=True)
    assert_same(compiled(x, weight, scales), packed_int8(x, weight, scales), FUSED)


@pytest.mark.fixed_sizes  # with a symbol for the number of rows, ATen multiplies
@pytest.mark.parametrize(
    ("rows", "dtype", "called"), [(40, torch.bfloat16, 0), (8, torch.bfloat16, 1), (8, torch.float32, 0)]
)
def test_aten_multiplies_few_rows_of_bfloat16(rows: int, dtype: torch.dtype, called: int) -> None:
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (64, 32)).int(), 1)
    counters.clear()
    stator.compile(packed_int4)(torch.randn(rows, 32).to(dtype), packed, torch.rand(1, 64, 2).to(dtype))
    name = "inductor_fallback:aten._weight_int4pack_mm_for_cpu.default"
    # ATen packs otherwise on processors without AVX-512, and multiplies what it packed so
    assert counters.counts[name] == (called if quantization._packs_blocks() else 1)


@pytest.mark.parametrize(("dynamic", "called"), [(False, 0), (True, 1)])
def test_aten_multiplies_by_int8_weights_where_rows_are_unknown(dynamic: bool, called: int) -> None:
    scales, weight = torch.ones(64, dtype=torch.bfloat16), torch.ones(64, 96, dtype=torch.int8)
    counters.clear()
    x = torch.randn(3, 96).bfloat16()
    stator.compile(packed_int8, dynamic=dynamic)(x, weight, scales)
    assert counters.counts["inductor_fallback:aten._weight_int8pack_mm.default"] == called
