"""Cumulative sums, products, extrema and logarithms equal eager: along rows, along columns, fused, of any dtype.

Running sums of float32 are kept in float64, as in ATen; along rows their additions have another order, so that a result
may be off by one rounding to float32 (2**-24, doubled by what follows). Half floats add up in float32, in another order
than ATen's: their results may be rounded to a neighbour (2**-8). Integers, and extrema with their places, are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.threads import threads

import stator
from stator.base import counters

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]
# short rows, rests of vectors, more columns than a block has, one row, three dimensions
SHAPES = [(3, 7), (50, 37), (20, 128), (5, 5000), (700,), (4, 19, 33), (1, 1)]
TOLERANCE = {torch.float32: 3e-7, torch.float64: 1e-12, torch.bfloat16: 2**-7, torch.float16: 2**-9}


def compare(function: Callable, *inputs: torch.Tensor, tolerance: float = 0.0) -> None:
    """Tolerances are relative. The graph calls no library."""
    counters.clear()
    with torch.no_grad():
        actual = stator.compile(function, options={"verify": True})(*inputs)
        expected = function(*inputs)
    assert not [name for name in counters.counts if name.startswith("inductor_fallback")]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=0, equal_nan=True)


def dimensions() -> Iterator[tuple[tuple[int, ...], int]]:
    for shape in SHAPES:
        yield from [(shape, dim) for dim in range(len(shape))]


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_products_and_logarithms_of_floats(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape, dim in dimensions():
        x = torch.rand(shape).to(dtype)  # without signs: the order of additions decides what sums that cancel leave
        tolerance = TOLERANCE[dtype] * (
            math.sqrt(x.shape[dim]) if dtype is torch.bfloat16 or dtype is torch.float16 else 1
        )
        compare(lambda x, dim=dim: (x.cumsum(dim) * 2, x + 1), x, tolerance=tolerance)
        compare(lambda x, dim=dim: x.logcumsumexp(dim).exp() * 2, x, tolerance=4 * tolerance)
        near_one = (1 + (torch.rand(shape) - 0.5) / 16).to(dtype)
        compare(lambda x, dim=dim: x.cumprod(dim) * 2, near_one, tolerance=tolerance)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
def test_sums_and_products_of_integers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape, dim in dimensions():
        x = torch.randint(-5, 6, shape).to(dtype)
        compare(lambda x, dim=dim: (x.cumsum(dim) - 1, x.cumprod(dim) + 1), x)
        if dtype is not torch.bool:  # sums that wrap around
            compare(lambda x, dim=dim, dtype=dtype: x.cumsum(dim, dtype=dtype) + 1, x)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_extrema_and_the_last_place_that_has_them(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape, dim in dimensions():
        x = (torch.randn(shape) * 4).round().to(dtype)  # many are equal
        compare(lambda x, dim=dim: (*x.cummax(dim), *x.cummin(dim)), x)


@pytest.mark.parametrize("dim", [0, 1])
def test_infinities_and_nan(dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 70).abs()
    x[3, 10], x[5], x[6, 20:], x[8, 2:5] = math.nan, -math.inf, math.inf, math.nan
    compare(lambda x: (*x.cummax(dim), *x.cummin(dim)), x)
    compare(lambda x: (x.cumsum(dim) + 1, x.logcumsumexp(dim) * 2), x, tolerance=1e-6)


def test_zeros_of_either_sign_are_equal() -> None:
    x = torch.tensor([[0.0, -0.0, 0.0, -0.0, -1.0, -0.0] * 7])
    values = stator.compile(lambda x: x.cummax(1).values)(x)
    assert torch.equal(values.signbit(), x.cummax(1).values.signbit())


def test_what_is_before_and_behind_a_scan_shares_its_loops() -> None:
    torch.manual_seed(0)
    x, scale = torch.rand(60, 200), torch.rand(200)

    def places(mask: torch.Tensor) -> torch.Tensor:
        return (mask.cumsum(1) - 1).clamp(min=0) * mask

    counters.clear()
    compare(places, torch.rand(30, 50) < 0.7)
    assert counters.counts["kernels"] == 1
    compare(lambda x, scale: (x * scale).cumsum(0) * scale + x[:, :1], x, scale, tolerance=1e-6)
    compare(lambda x: torch.softmax(x.cumsum(-1) / 50, -1), x, tolerance=1e-5)  # each run over a row scans it again
    compare(lambda x: torch.softmax(x.repeat(1, 400).cumsum(-1) / 1e4, -1), x, tolerance=1e-5)  # too long to be kept
    compare(lambda x: (x.cumsum(0).sum(0), x.cumsum(0).amax(1), x.cumsum(1).sum((0, 1))), x, tolerance=1e-5)
    compare(lambda x: x.cumsum(0).cumsum(1) + 1, x, tolerance=1e-6)
    compare(lambda x: x.reshape(60, 4, 50).cumsum(1).cumsum(2).sum((1, 2)), x, tolerance=1e-5)
    compare(lambda x: x.flip(1).cumsum(1).flip(1), x, tolerance=1e-6)
    compare(lambda x: x.t().cumsum(1) + x.t().cumprod(0), x, tolerance=1e-6)
    compare(lambda x: x[:, :, None].expand(60, 200, 5).cumsum(2) + torch.ones_like(x).cumsum(0)[..., None], x)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_results_do_not_depend_on_the_number_of_threads(number: int) -> None:
    torch.manual_seed(0)
    x = torch.rand(300, 1003)
    function = stator.compile(lambda x: (x.cumsum(0), x.cumsum(1), *x.cummax(0), x.reshape(3, 100, 1003).cumsum(1)))
    with threads(1):
        expected = function(x)
    with threads(number):
        assert all(map(torch.equal, function(x), expected))


def test_sizes_that_vary() -> None:
    torch.manual_seed(0)
    counters.clear()
    function = stator.compile(lambda x: (x.cumsum(0) * 2, x.cumsum(1) * 2, *x.cummax(1)), dynamic=True)
    for shape in ((3, 5), (40, 33), (100, 2100), (7, 16)):
        x = torch.rand(shape)
        torch.testing.assert_close(function(x), (x.cumsum(0) * 2, x.cumsum(1) * 2, *x.cummax(1)), rtol=1e-6, atol=0)
    assert counters.counts["graphs"] == 1


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients(dim: int) -> None:
    torch.manual_seed(0)

    def function(x: torch.Tensor) -> torch.Tensor:
        total = (x.cumsum(dim).sin() + x.cumprod(dim) + x.logcumsumexp(dim) + x.cummax(dim).values).sum()
        return torch.autograd.grad(total, x)[0]

    x = (1 + torch.rand(20, 40) / 8).requires_grad_()
    torch.testing.assert_close(stator.compile(function)(x), function(x), rtol=1e-4, atol=1e-4)


@pytest.mark.fixed_sizes  # rows of a symbolic length run in a loop
def test_short_rows_are_unrolled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over a few elements takes twice as long."""
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    compare(lambda x: (x.cumsum(1) + 1, x.cummax(1).indices), torch.randint(0, 9, (40, 8)))
    (kernels,) = tmp_path.glob("*/60_code.cpp")
    assert "#pragma GCC unroll 8" in kernels.read_text()
