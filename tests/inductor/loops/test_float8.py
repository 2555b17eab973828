"""8-bit floats in kernels: every number, and float32 numbers of all sizes, bit by bit as eager converts them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator
from stator.base import counters
from stator.inductor.loops.float8 import BYTES

SOURCES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32)
dtypes = pytest.mark.parametrize("dtype", BYTES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def numbers(source: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes, those halfway between two of few bits, their neighbours, infinities, NaN."""
    high = torch.arange(0, 2**16).mul(2**16)
    bits = torch.cat([high, high + 1, high - 1, high + 2**15, high + 2**15 - 1, torch.arange(0, 2**32, 4099)])
    wide = bits.to(torch.int32).view(torch.float32)
    if source.is_floating_point:
        return wide.to(source)
    return torch.cat([torch.arange(-600, 600), 2 ** torch.arange(31), -(2 ** torch.arange(31))]).to(source)


def compiled(function: Any, *given: torch.Tensor) -> torch.Tensor:
    """The result of kernels of our own."""
    before = counters.counts["inductor_fallback:aten._to_copy.default"]
    result: torch.Tensor = stator.compile(function, fullgraph=True)(*given)
    assert counters.counts["inductor_fallback:aten._to_copy.default"] == before
    return result


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype is expected.dtype
    assert torch.equal(found.isnan(), expected.isnan())
    as_bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.itemsize]
    is_nan = expected.isnan()
    found, expected = (one.view(as_bits).masked_fill(is_nan, 0) for one in (found, expected))
    assert torch.equal(found, expected)


@dtypes
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_narrowed(dtype: torch.dtype, source: torch.dtype) -> None:
    given = numbers(source)
    assert_same_bits(compiled(lambda x: x.to(dtype), given), given.to(dtype))


@dtypes
@pytest.mark.parametrize("target", SOURCES[:-1], ids=str)
def test_widened(dtype: torch.dtype, target: torch.dtype) -> None:
    given = torch.arange(256).to(torch.uint8).view(dtype)
    assert_same_bits(compiled(lambda x: x.to(target), given), given.to(target))


@dtypes
def test_between_fused_operators(dtype: torch.dtype) -> None:
    """Two tensors are read and one is written: no float32 tensor is stored."""

    def scaled(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return ((x.float() + y.float()) * scale).clamp(-200, 200).t().to(dtype)

    x, y = (torch.randn(70, 131).to(dtype) for _ in range(2))
    before = counters.counts["kernels"]
    found = compiled(scaled, x, y, torch.tensor(3.0))
    assert counters.counts["kernels"] == before + 1
    assert found.stride() == scaled(x, y, torch.tensor(3.0)).stride()
    assert_same_bits(found, scaled(x, y, torch.tensor(3.0)))


@dtypes
def test_moved_without_conversion(dtype: torch.dtype) -> None:
    """Rows cut, joined, transposed and copied keep their bits, those of NaN included."""
    given = torch.arange(256).to(torch.uint8).view(dtype).reshape(16, 16)

    def moved(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[2:7].t().contiguous(), x.t()[:, 1:4].clone()], 1)

    found = stator.compile(moved, fullgraph=True)(given)
    assert torch.equal(found.view(torch.uint8), moved(given).view(torch.uint8))


def test_arithmetic_raises_as_in_eager() -> None:
    x = torch.ones(4).to(torch.float8_e4m3fn)
    with pytest.raises(Exception) as expected:
        _ = x + x
    with pytest.raises(type(expected.value)):
        stator.compile(lambda x: x + x, fullgraph=True)(x)
