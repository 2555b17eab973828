"""Compiled functions on every dtype against eager: arithmetic, bits, selection, reductions, reversed order, tails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# 16 lanes: less than a vector, a vector and a tail, several vectors and a tail, and enough for several accumulators
SHAPES = [(5,), (3, 17), (70,), (3, 301)]


def arithmetic(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = (a + b, a - b, a * b, a + 100, -a, a.abs(), torch.maximum(a, b), torch.minimum(a, b), a.clamp(-3, 50))
    chained = ((a + b) * (a - b) + a, torch.where(a + b > a, a * b, b))
    return (*both, *chained, a % b, a // b, torch.fmod(a, b))


def comparisons(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a < b, a <= b, a == b, a != 1, torch.where(a > b, a, b), a.bool(), (a > b).to(a.dtype)


def bits(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a & b, a | b, a ^ b, ~a, a << 2, a >> 1, (a << 3) >> 2


def reductions(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = (a.amax(), a.amin(), a.any(), a.all(), a.argmax(), a.argmin())
    return (*whole, a.amax(-1), a.amin(0), a.any(0), (a * 0).any(), (a == a).all(-1))


def reversals(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a.flip(-1) + b, torch.where(b.flip(0) == a.flip(-1), a, b.flip(-1)), (a == b).flip(-1) & (a != 1)


def integer_sums(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a.sum(), a.sum(-1), a.sum(0), a.sum(dtype=torch.int32), a.prod()


def _values(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 20).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, generator=generator, dtype=dtype) | 1


CASES: list[tuple[Callable[..., tuple[torch.Tensor, ...]], list[torch.dtype]]] = [
    (arithmetic, [*INTEGERS, *FLOATS]),
    (comparisons, [*INTEGERS, *FLOATS, torch.bool]),
    (bits, INTEGERS),
    (reductions, [*INTEGERS, *FLOATS]),
    (reversals, [*INTEGERS, *FLOATS]),
    (integer_sums, [*INTEGERS, torch.bool]),
]


@pytest.mark.parametrize(("function", "dtype"), [(f, d) for f, dtypes in CASES for d in dtypes])
def test_dtypes_equal_eager(function: Callable[..., tuple[torch.Tensor, ...]], dtype: torch.dtype) -> None:
    # eager's floor division of halves rounds its steps to halves
    compiled = stator.compile(function, options={"exact_rounding": dtype in (torch.float16, torch.bfloat16)})
    for shape in SHAPES:
        a, b = _values(dtype, shape, 0), _values(dtype, shape, 1)
        for number, (actual, expected) in enumerate(zip(compiled(a, b), function(a, b), strict=True)):
            torch.testing.assert_close(
                actual, expected, rtol=0, atol=0, equal_nan=True, msg=f"result {number}, {shape}"
            )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64]
)
@pytest.mark.parametrize("at", [0, 18, 160, 300])
def test_largest_and_smallest_of_long_rows(dtype: torch.dtype, at: int) -> None:
    compiled = stator.compile(lambda a: (a.amax(-1), a.amin(-1), a.amax(), a.amin()))
    a = _values(dtype, (2, 301), 0)
    a[1, at] = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
    for actual, expected in zip(compiled(a), (a.amax(-1), a.amin(-1), a.amax(), a.amin()), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
