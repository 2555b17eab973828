"""Half floats that are only moved keep all bits, as in eager: those of NaN, too. What is computed does not change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import stator

HALVES = [torch.bfloat16, torch.float16]


def any_bits(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16).view(dtype)


def assert_equal_bits(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    actual = stator.compile(function, options={"verify": True})(*inputs)
    expected = function(*inputs)
    assert actual.dtype is expected.dtype and torch.equal(actual.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("dtype", HALVES)
def test_bits_of_moved_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = any_bits(37, 50, dtype=dtype), any_bits(37, 50, dtype=dtype)
    rows, mask = torch.randint(37, (100,)), torch.rand(37, 50) < 0.5
    assert_equal_bits(lambda x, rows: F.embedding(rows, x).reshape(-1, 25).t().contiguous(), x, rows)
    assert_equal_bits(lambda x: F.pad(x, (3, 1, 2, 5), value=1.5), x)
    assert_equal_bits(lambda x, y: torch.cat([x[:, 3:], y, x], 1).flip(1), x, y)
    assert_equal_bits(lambda x, y, mask: torch.where(mask, x, y.roll(3, 1)).contiguous(), x, y, mask)
    assert_equal_bits(lambda x: x.triu(2).reshape(50, 37).mT.contiguous(), x)
    assert_equal_bits(lambda x: x[:, ::3].repeat(2, 3), x)
    assert_equal_bits(lambda x: torch.full_like(x, 0.1), x)


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_moved_beside_what_is_computed(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 33).to(dtype), torch.randn(40, 33).to(dtype)

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.where(x > 0, x, y)
        return chosen, chosen + 1, torch.cat([x, y * 2], 1), torch.where(x > 0, y, 0.5), x.float().t().contiguous()

    actual = stator.compile(function, options={"verify": True})(x, y)
    torch.testing.assert_close(actual, function(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", HALVES)
def test_memory_that_is_written_in_place(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = any_bits(40, 33, dtype=dtype), any_bits(40, 10, dtype=dtype)

    def function(x: torch.Tensor, y: torch.Tensor) -> None:
        x[:, 5:15] = y
        x[3:7] = x[20:24]

    expected, actual = x.clone(), x.clone()
    function(expected, y)
    stator.compile(function)(actual, y)
    assert torch.equal(actual.view(torch.int16), expected.view(torch.int16))
