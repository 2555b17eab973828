"""Places of largest and smallest elements equal eager's: the first of equals, of NaN, of infinities, of any dtype."""

from __future__ import annotations

import math

import pytest
import torch

import stator

# short rows, rests of vectors, rows of several accumulators, one row, three dimensions
SHAPES = [(3, 7), (40, 130), (33, 1000), (5, 6, 50), (300, 77), (1,), (5000,)]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def compare(x: torch.Tensor, dynamic: bool = False) -> None:
    def along(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
        return *x.max(dim), *x.min(dim), x.argmax(dim), x.argmin(dim)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        found = [one for dim in range(x.dim()) for one in along(x, dim)]
        return [*found, x.argmax(), x.argmin(), x.transpose(0, -1).argmax()]

    actual = stator.compile(function, options={"verify": True}, dynamic=dynamic)(x)
    torch.testing.assert_close(actual, function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_first_of_equal_floats(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        x = (torch.randn(shape) * 3).round().to(dtype)
        compare(x)
        places = torch.randint(x.numel(), (max(1, x.numel() // 30),))
        compare(x.flatten().index_fill(0, places, math.nan).view(shape))
        compare(torch.full_like(x, -math.inf).flatten().index_fill(0, places, math.inf).view(shape))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_first_of_equal_integers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        compare(torch.randint(-4, 5, shape).to(dtype))
        compare(torch.full(shape, torch.iinfo(dtype).min, dtype=dtype))
        compare(torch.full(shape, torch.iinfo(dtype).max, dtype=dtype))


def test_sizes_that_vary() -> None:
    torch.manual_seed(0)
    for shape in ((3, 5), (40, 130), (1000, 33)):
        compare((torch.randn(shape) * 3).round(), dynamic=True)
