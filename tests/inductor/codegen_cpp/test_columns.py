"""Reductions along columns equal eager: whole blocks, vectors that are left, rests of vectors, rows in parts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.threads import threads

import stator


def compare(function: Callable, *inputs: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    with torch.no_grad():
        actual = stator.compile(function, options={"verify": True})(*inputs)
        torch.testing.assert_close(actual, function(*inputs), rtol=rtol, atol=atol)


# (rows, columns): narrow and split into parts; blocks of several widths; rests; too little work for threads
SHAPES = [(6000, 10), (3000, 33), (2000, 96), (300, 200), (64, 2048), (37, 100), (50, 1040), (5, 7), (1, 64), (900, 17)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2])
def test_sums_of_products_and_values_stored_on_the_way(shape: tuple[int, int], count: int) -> None:
    torch.manual_seed(0)

    def function(x, y, scale):
        product = x * y.sigmoid() * scale
        return product, product.sum(0), (product * x).sum(0) * scale + 1, product.sum(1)

    with threads(count):
        compare(function, torch.randn(shape), torch.randn(shape), torch.randn(shape[1]), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32])
def test_kinds_of_reductions(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(700, 70).mul(5).to(dtype)
    compare(
        lambda t: (t.sum(0), t.amax(0), t.amin(0), (t > 2).any(0)), x, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_places_of_extremes(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """With ties, of which the first counts, and NaN."""
    x = torch.randint(0, 6, shape, generator=torch.Generator().manual_seed(8)).to(dtype)
    if dtype.is_floating_point and shape[0] > 2:
        x[2, ::3] = torch.nan
    with torch.no_grad():
        actual = stator.compile(lambda t: (t.max(0), t.min(0), (t + 1).argmax(0)), options={"verify": True})(x)
    torch.testing.assert_close(actual, (x.max(0), x.min(0), (x + 1).argmax(0)), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(1003, 300), (400, 1000), (9, 131, 200), (3, 37, 53, 160)], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["constant", "symbolic"])
def test_rows_that_are_added_to_accumulators_in_memory(
    dtype: torch.dtype, shape: tuple[int, ...], dynamic: bool
) -> None:
    """Rows and columns that are left, parts of long sums, a value of each column and one of each row."""
    torch.manual_seed(3)
    x, y, row = (torch.randn(size).mul(5).to(dtype) for size in (shape, shape, (*shape[:-1], 1)))
    axis = -2 if len(shape) == 3 else tuple(range(len(shape) - 1))

    def function(x, y, scale, row):
        deviation = (x - scale * 2) * row
        return x.sum(axis), (deviation * y).sum(axis), x.amax(axis), deviation.amin(axis) + scale

    column = torch.randn(shape[-1]).mul(5).to(dtype)
    expected = function(*(one.double() if dtype.is_floating_point else one for one in (x, y, column, row)))
    for count in (1, 2):
        with threads(count):
            compiled = stator.compile(function, dynamic=dynamic, options={"verify": True})
            actual = compiled(x, y, column, row)
        tolerance = {torch.bfloat16: 2e-2, torch.float32: 2e-6}.get(dtype, 1e-12)
        for one, other in zip(actual, expected, strict=True):
            scale = other.abs().max().clamp(min=1) * tolerance
            assert (one - other).abs().max() <= scale


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1003, 300), (401, 1024), (9, 131, 520), (3, 37, 53, 272)], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["constant", "symbolic"])
def test_rows_that_are_stored_and_added_to_accumulators_in_memory(
    dtype: torch.dtype, shape: tuple[int, ...], dynamic: bool
) -> None:
    """As the backward of a batch normalisation of channels-last images: the gradient of a ReLU, and two sums of it."""
    torch.manual_seed(4)
    x, y, z = (torch.randn(shape).to(dtype) for _ in range(3))
    axis, column = tuple(range(len(shape) - 1)), torch.randn(shape[-1]).to(dtype)

    def function(x, y, z, column):
        gradient = torch.where(z > 0, x + y, 0.0)
        return gradient, (gradient * (z - column)).sum(axis), gradient.sum(axis), gradient.mT.contiguous()

    expected = function(*(one.double() for one in (x, y, z, column)))
    for count in (1, 2):
        with threads(count):
            actual = stator.compile(function, dynamic=dynamic, options={"verify": True})(x, y, z, column)
        for one, other in zip(actual, expected, strict=True):
            tolerance = {torch.bfloat16: 2e-2, torch.float32: 2e-6}.get(dtype, 1e-12)
            assert (one - other).abs().max() <= other.abs().max() * tolerance


@pytest.mark.fixed_sizes  # a symbolic number of columns is read in blocks
def test_long_rows_that_are_stored_are_added_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of columns memory would be read in pieces of some hundred bytes, half as fast."""
    x, y = torch.randn(2, 2000, 700)

    def function(x, y):
        product = x * y
        return product, product.sum(0)

    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    compare(function, x, y)
    (kernels,) = tmp_path.glob("*/60_code.cpp")
    assert "_step" in kernels.read_text()


def test_reductions_in_the_middle_of_a_shape() -> None:
    torch.manual_seed(2)
    compare(lambda t: (t.sum(1), t.amax((0, 1))), torch.randn(3, 400, 72))


def test_more_reductions_than_a_block_has_registers() -> None:
    torch.manual_seed(3)
    compare(lambda t: tuple((t * k).sum(0) for k in range(1, 20)), torch.randn(500, 64), atol=1e-2)


def test_images_in_channels_last() -> None:
    torch.manual_seed(4)
    x = torch.randn(2, 48, 20, 20).contiguous(memory_format=torch.channels_last)
    compare(lambda t, m: ((t - m).square().sum((0, 2, 3)), t.sum((2, 3))), x, x.mean((0, 2, 3), keepdim=True))


@pytest.mark.parametrize("columns", [16, 24, 70])
def test_rows_of_a_table_that_the_columns_look_up(columns: int) -> None:
    """A vector quantizer's residual and its norm: the index varies with the column alone."""
    torch.manual_seed(7)

    def function(x, table, index):
        residual = x - torch.nn.functional.embedding(index, table).transpose(1, 2)
        return residual, residual.square().sum(1)

    compare(function, torch.randn(2, 16, columns), torch.randn(50, 16), torch.randint(50, (2, columns)))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(5)
    x, function = torch.randn(5000, 40), stator.compile(lambda t: t.sum(0))
    found = []
    for count in (1, 2, 3):
        with threads(count), torch.no_grad():
            found.append(function(x))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("shape", [(2, 64, 100, 100), (30000, 40), (3, 20000), (8, 16, 40, 40)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_long_sums_are_as_exact_as_eager(shape: tuple[int, ...], memory_format: torch.memory_format) -> None:
    """A million terms one after the other would be wrong in the fifth digit."""
    torch.manual_seed(6)
    x = torch.rand(shape)
    if len(shape) == 4:
        x = x.contiguous(memory_format=memory_format)
    dims = (0, 2, 3) if len(shape) == 4 else (0,) if shape[0] > shape[1] else (1,)
    with torch.no_grad():
        total, squares, whole = stator.compile(lambda t: (t.sum(dims), t.square().sum(dims), t.sum()))(x)
    exact = x.double()
    for actual, expected in ((total, exact.sum(dims)), (squares, exact.square().sum(dims)), (whole, exact.sum())):
        torch.testing.assert_close(actual.double(), expected, rtol=4e-7, atol=0)


def test_sums_of_parts_that_are_sums_of_columns() -> None:
    """The gradients of a layer norm's parameters: the kernel of the rows leaves parts for a second kernel."""
    torch.manual_seed(4)
    layer = torch.nn.LayerNorm(768)
    x, grad = torch.randn(2, 2730, 768)
    wanted = [x.requires_grad_(), *layer.parameters()]
    compiled = stator.compile(layer, fullgraph=True, options={"verify": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = torch.autograd.grad(compiled(x), wanted, grad)
    expected = torch.autograd.grad(layer(x), wanted, grad)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)
