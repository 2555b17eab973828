"""Kernels that are compiled for timing compute what they stand for."""

from __future__ import annotations

import pytest
import torch
from tests.differential import NARROW, assert_same

from stator.inductor.codegen.cpp import compiled_sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("along_memory", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_sums_with_a_quantized_weight(rows: int, along_memory: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, out = torch.randn(rows, 80), torch.full((rows, 48), 7.0, dtype=dtype)
    matrix = torch.randint(-9, 9, (80, 48), dtype=torch.int8)
    compiled_sums(rows, 80, 48, dtype, along_memory)(x, matrix.t().contiguous().t() if along_memory else matrix, out)
    assert_same(out, (x @ matrix.float()).to(dtype), NARROW)
