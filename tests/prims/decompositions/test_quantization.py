"""The operators of torch's flows of quantization equal eager's, computed in loops instead of by the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from tests.differential import EXACT, NARROW, assert_same

import stator
from stator.base import counters

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
