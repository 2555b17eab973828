"""Softmaxes under masks: weights that only weigh products are no denormal numbers, and all results are eager's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.differential import FUSED, assert_same

import stator

MASKS = (0.0, -20.0, -79.0, -81.0, -90.0, -100.0, -103.9, -105.0, -1e9, -math.inf)
KEYS = 40


def masked(mask: float) -> torch.Tensor:
    return torch.where(torch.arange(KEYS) >= KEYS // 2, mask, 0.0)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 8 + mask, -1) @ v


def operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, KEYS, 16) for _ in range(3)]


@pytest.mark.parametrize("mask", MASKS)
def test_attention(mask: float) -> None:
    with torch.no_grad():
        assert_same(stator.compile(attend)(*operands(), masked(mask)), attend(*operands(), masked(mask)), FUSED)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("operand", range(3), ids=["query", "key", "value"])
def test_special_numbers(mask: float, special: float, operand: int) -> None:
    """Also behind a mask: there an infinite value is infinite where its weight is above zero, else not a number. Which
    of both it is may differ where eager's weight is a denormal number."""
    for place in (1, KEYS - 1):
        given = operands()
        given[operand][0, 0, place, 3] = special
        with torch.no_grad():
            found, expected = stator.compile(attend)(*given, masked(mask)), attend(*given, masked(mask))
        if operand == 2 and -104 < mask < -90:
            found, expected = (one.masked_fill(~one.isfinite(), math.inf) for one in (found, expected))
        assert_same(found, expected, FUSED)


def test_rows_without_keys() -> None:
    mask = torch.zeros(KEYS, KEYS)
    mask[3] = -math.inf
    with torch.no_grad():
        assert_same(stator.compile(attend)(*operands(), mask), attend(*operands(), mask), FUSED)


def returned(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weights = torch.softmax(x, -1)
    return weights @ v, weights


def logarithm(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.softmax(x, -1)) @ v


@pytest.mark.parametrize("function", [returned, logarithm], ids=["returned", "read by loops"])
@pytest.mark.parametrize("mask", [-88.0, -95.0])
def test_weights_that_others_read_keep_their_denormal_numbers(function: Callable[..., object], mask: float) -> None:
    x, v = torch.randn(6, KEYS) + masked(mask), torch.randn(KEYS, 8)
    with torch.no_grad():
        assert_same(stator.compile(function)(x, v), function(x, v), FUSED)
    weights = stator.compile(lambda x: torch.softmax(x, -1))(x)
    torch.testing.assert_close(weights, torch.softmax(x, -1), rtol=1e-4, atol=2e-45)
    assert weights.min() > 0


def test_gradients() -> None:
    q, k, v = operands()
    q.requires_grad_()
    compiled = stator.compile(attend)
    expected = torch.autograd.grad(attend(q, k, v, masked(-100.0)).square().sum(), q)
    assert_same(torch.autograd.grad(compiled(q, k, v, masked(-100.0)).square().sum(), q), expected, FUSED)
