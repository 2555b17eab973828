"""Sums of long rows go to several accumulators: rows around the sizes of their steps, with rests, of any dtype."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import stator

COLUMNS = [127, 128, 130, 192, 200, 1000, 2049, 5000]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum(-1), (x * x).sum(-1), x.amax(-1), x.sum()


def compare(x: torch.Tensor, dynamic: bool = False) -> None:
    actual = stator.compile(sums, options={"verify": True}, dynamic=dynamic)(x)
    for one, other in zip(actual, sums(x.double()), strict=True):
        limit = torch.finfo(one.dtype).eps * (1 if one.dtype.itemsize == 2 else 4)
        torch.testing.assert_close(one.double(), other, rtol=limit, atol=limit * x.shape[-1] ** 0.5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for columns in COLUMNS:
        # Drawn with all bits: squares of float32's odd fractions end alike, and doubles that add them up round one way
        x = torch.rand(3, 2 * columns, dtype=torch.float64).to(dtype)
        compare(x[:, :columns].contiguous())
        compare(x[:, columns:])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for columns in COLUMNS:
        x = torch.randint(0, 100, (3, columns)).to(dtype)
        actual = stator.compile(lambda x: (x.sum(-1), x.sum()), options={"verify": True})(x)
        torch.testing.assert_close(actual, (x.sum(-1), x.sum()), rtol=0, atol=0)


@pytest.mark.parametrize("columns", [140, 1000, 40000])
def test_norms_and_rows_in_parts(columns: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, columns), torch.randn(columns)

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normal = torch.nn.functional.layer_norm(x, x.shape[-1:], weight)
        return normal, x.var(-1), torch.nn.functional.rms_norm(x, x.shape[-1:], weight), (x * x).mean()

    actual = stator.compile(function, options={"verify": True})(x, weight)
    torch.testing.assert_close(actual, function(x, weight), rtol=2e-6, atol=1e-5)


def test_infinities_and_nan() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 300)
    x[0, 250], x[1, 3], x[2, 70] = torch.inf, -torch.inf, torch.nan
    x[3, 5], x[3, 299] = torch.inf, -torch.inf
    actual = stator.compile(lambda x: (x.sum(-1), x.amax(-1), x.var(-1)))(x)
    torch.testing.assert_close(actual, (x.sum(-1), x.amax(-1), x.var(-1)), equal_nan=True)


def test_sizes_that_vary() -> None:
    torch.manual_seed(0)
    compiled = stator.compile(lambda x: (x.sum(-1), (x * x).sum(-1)), dynamic=True)
    for columns in (500, 130, 20, 3, 4111):
        x = torch.rand(4, columns)
        torch.testing.assert_close(compiled(x), (x.sum(-1), (x * x).sum(-1)))


@pytest.mark.fixed_sizes  # rows of a symbolic length are read whole
def test_deviations_from_the_mean_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the part is: far from the rest, constant, with or without the only element that differs."""
    torch.manual_seed(0)
    x = torch.randn(7, 9100)
    x[0, :200] += 1e4
    x[1, 200:] += 1e4
    x[2] = 3.1
    x[3] = torch.where(torch.arange(9100) == 7, 100.0, 0.1)
    x[4] = torch.where(torch.arange(9100) == 9099, 100.0, 0.1)
    x[5, :2000], x[5, 2000:] = -1e3, 1e3
    x[6] += 1e3

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.group_norm((x * 0.5)[:, None], 1)

    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    actual = stator.compile(function, options={"verify": True})(x)
    torch.testing.assert_close(actual, function(x.double()), rtol=1e-5, atol=1e-4, check_dtype=False)
    (kernels,) = tmp_path.glob("*/60_code.cpp")
    assert re.search(r"\b576\b", kernels.read_text()) is not None  # a sixteenth, in whole steps


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("row", "kept"), [(50257, True), (262144, True), (262145, False)])
def test_values_of_rows_are_kept_while_a_core_s_cache_holds_them(
    row: int, kept: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(x), 1)

    torch.manual_seed(0)
    x = torch.randn(4, row).to(dtype)
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    actual = stator.compile(function, options={"verify": True})(x)
    limit = {"rtol": 1e-5, "atol": 1e-9} if dtype is torch.float32 else {"rtol": 8e-3, "atol": 1e-9}
    torch.testing.assert_close(actual, function(x.double()), **limit, check_dtype=False)
    (kernels,) = tmp_path.glob("*/60_code.cpp")
    assert ("alignas(64) float row" in kernels.read_text()) == kept
