"""Reductions of NaN, infinities and huge numbers: at every place of a row, in every dtype, as in eager."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

import stator

Operation = Callable[[torch.Tensor, int], object]
# the quick tests take one dtype that vectors hold and one that they widen
FLOATS = [
    torch.float32,
    torch.bfloat16,
    *[pytest.param(one, marks=pytest.mark.slow) for one in (torch.float64, torch.float16)],
]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
# below, at and above the width of a vector, and above the rows that stay in the first cache
SIZES = [7, 16, 37, 9001]
OPERATIONS: dict[str, Operation] = {
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim),
    "prod": lambda x, dim: x.prod(dim),
    "nansum": lambda x, dim: x.nansum(dim),
    "amax": lambda x, dim: x.amax(dim),
    "amin": lambda x, dim: x.amin(dim),
    "max": lambda x, dim: tuple(x.max(dim)),
    "min": lambda x, dim: tuple(x.min(dim)),
    "argmax": lambda x, dim: x.argmax(dim),
    "argmin": lambda x, dim: x.argmin(dim),
    "any": lambda x, dim: x.any(dim),
    "all": lambda x, dim: x.all(dim),
    "var": lambda x, dim: x.var(dim),
    "std": lambda x, dim: x.std(dim),
    "norm of order 1": lambda x, dim: torch.linalg.vector_norm(x, 1, dim),
    "norm of order 2": lambda x, dim: torch.linalg.vector_norm(x, 2, dim),
    "norm of order 3": lambda x, dim: torch.linalg.vector_norm(x, 3, dim),
    "norm of order inf": lambda x, dim: torch.linalg.vector_norm(x, math.inf, dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "layer_norm": lambda x, dim: F.layer_norm(x if dim else x.t(), (x.shape[dim],)),
    "rms_norm": lambda x, dim: F.rms_norm(x if dim else x.t(), (x.shape[dim],)),
    "group_norm": lambda x, dim: F.group_norm((x if dim else x.t())[:, None], 1),
    "batch_norm": lambda x, dim: F.batch_norm(x.t() if dim else x, None, None, training=True),
}
OF_INTEGERS = ["sum", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all"]
NAN, INF = math.nan, math.inf


def rows(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows with a special value first, in the middle, in the tail, last, or everywhere, or with two of them."""
    plain = torch.tensor([0.5, 2.0, 1.0]).repeat(size // 3 + 1)[:size].to(dtype)  # the product stays in range
    found = [plain]
    for value in (NAN, INF, -INF):
        for place in {0, size // 2, size // 16 * 16 % size, size - 1}:
            found.append(plain.clone())
            found[-1][place] = value
        found.append(torch.full_like(plain, value))
    for first, last in ((INF, -INF), (INF, NAN), (NAN, -INF)):
        found.append(plain.clone())
        found[-1][0], found[-1][-1] = first, last
    return torch.stack(found)


def both_ways(operation: Operation) -> Callable[[torch.Tensor, torch.Tensor], object]:
    return lambda rows, columns: (operation(rows, -1), operation(columns, 0))


@pytest.mark.each_pair
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_reduction_keeps_nan_and_infinity(name: str, dtype: torch.dtype, size: int) -> None:
    program = both_ways(OPERATIONS[name])
    x = rows(size, dtype)
    operands = (x, x.t().contiguous())
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {}
    # eager's own sums of float32 depend on the number of threads, by more than the tolerance
    expected = program(*(operand.double() if dtype is torch.float32 else operand for operand in operands))
    expected = tree_map(lambda part: part.to(dtype) if part.dtype is torch.float64 else part, expected)
    torch.testing.assert_close(stator.compile(program)(*operands), expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ("batch_norm", "prod")])
def test_a_row_that_threads_share_keeps_nan_and_infinity(name: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> object:
        return OPERATIONS[name](x, -1)

    compiled = stator.compile(program)
    for value in (NAN, INF, -INF):
        for place in (0, 33333, 70002, slice(None)):
            x = torch.rand(1, 70003, generator=torch.Generator().manual_seed(0)).to(dtype)
            x[0, place] = value
            torch.testing.assert_close(compiled(x), program(x), equal_nan=True, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", OF_INTEGERS)
def test_a_reduction_of_the_largest_and_smallest_integers(name: str, dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.max, limits.max // 2], dtype=dtype).repeat(20)[:37]
    x = torch.stack([x, x.flip(0), torch.full_like(x, limits.min), torch.full_like(x, limits.max)])
    program = both_ways(OPERATIONS[name])
    operands = (x, x.t().contiguous())
    torch.testing.assert_close(stator.compile(program)(*operands), program(*operands))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["var", "std"])
def test_spread_of_numbers_whose_squares_or_sums_overflow(name: str, dtype: torch.dtype, size: int) -> None:
    largest = torch.finfo(dtype).max
    plain = torch.rand(4, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    if dtype is torch.float64:  # no wider dtype holds its squares, in eager neither
        scales = [largest**0.5 / size]
    else:
        scales = [largest**0.5, largest**0.5 * 4, largest / 4, largest]
    x = torch.cat([plain * scale for scale in scales])
    constant = torch.full((1, size), min(largest, 1e15), dtype=dtype)
    x = torch.cat([x, constant])
    program = both_ways(OPERATIONS[name])
    operands = (x, x.t().contiguous())
    compiled, eager = stator.compile(program)(*operands), program(*operands)
    torch.testing.assert_close(compiled, eager, equal_nan=True)
    assert compiled[0][-1] == compiled[1][-1] == 0.0  # type: ignore[index]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["var", "std"])
def test_spread_of_numbers_whose_distances_overflow(name: str, dtype: torch.dtype, size: int) -> None:
    operation = torch.var_mean if name == "var" else torch.std_mean

    def program(rows: torch.Tensor, columns: torch.Tensor) -> list[torch.Tensor]:
        return [*operation(rows, -1), *operation(columns, 0)]

    largest = torch.finfo(dtype).max
    x = torch.tensor([0.9, 0.9, 0.9, 0.9, -0.95]).repeat(size)[:size].double().mul(largest).to(dtype)[None]
    results = stator.compile(program)(x, x.t().contiguous())
    spread = largest * 0.74 if name == "std" and dtype is not torch.float64 else INF
    mean = x.double().mul(2.0**-20).mean().mul(2.0**20)
    for part, expected in zip(results, [spread, mean, spread, mean], strict=True):
        torch.testing.assert_close(
            part.double(), torch.tensor([float(expected)], dtype=torch.float64), rtol=0.2, atol=0
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("layout", ["rows", "images", "channels last"])
def test_batch_norm_of_channels_whose_sums_or_squares_overflow(layout: str, dtype: torch.dtype) -> None:
    x = torch.rand(37, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    largest = torch.finfo(dtype).max
    x[:, ::3] *= largest / 3  # the sums of each thread overflow
    x[:, 1::3] *= largest**0.5 * 100
    x = x.to(dtype)
    if layout != "rows":
        x = x.view(37, 10, 2, 2)
        x = x.contiguous(memory_format=torch.channels_last if layout == "channels last" else torch.contiguous_format)

    def program(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean, variance, training=True)

    def results(program: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        running = [torch.zeros(x.shape[1], dtype=dtype), torch.ones(x.shape[1], dtype=dtype)]
        return [program(x, *running), *running]

    expected = results(program)
    assert expected[0].isnan().any() or (layout == "images" and dtype is torch.float32)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {}
    torch.testing.assert_close(results(stator.compile(program)), expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("size", SIZES)
def test_products_of_float16_leave_its_range_step_by_step(size: int) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        slices = torch.zeros(x.shape[0], dtype=torch.int64)
        return [x.prod(), x.prod(0), x.prod(-1), torch.ones_like(x).index_reduce(0, slices, x, "prod")]

    x = torch.rand(8, size, generator=torch.Generator().manual_seed(size)).add(0.5)
    x[0], x[1, 0], x[-1, -1] = 60000.0, 60000.0, 0.0
    x[4] = 1e-4
    x = x.half()
    torch.testing.assert_close(stator.compile(program)(x), program(x), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("size", [*SIZES, 64, 768])
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "group_norm"])
def test_a_normalisation_whose_variance_overflows_gives_nan(name: str, dtype: torch.dtype, size: int) -> None:
    def program(x: torch.Tensor) -> object:
        return OPERATIONS[name](x, -1)

    x = torch.randn(4, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    x[1:] *= torch.finfo(dtype).max ** 0.75
    result = stator.compile(program)(x)
    torch.testing.assert_close(result[0], program(x)[0])  # type: ignore[index]
    assert result[1:].isnan().all()
    if size in (64, 768):  # for other sizes eager gives zeros in some rows
        assert program(x)[1:].isnan().all()  # type: ignore[index]


def test_a_long_row_of_equal_numbers_normalises_to_zeros() -> None:
    x = torch.tensor([3.7, 100.1, 12345.6])[:, None].repeat(1, 769)
    result = stator.compile(lambda x: F.layer_norm(x, (769,)))(x)
    torch.testing.assert_close(result, torch.zeros_like(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_softmax_by_the_reciprocal_of_a_sum(dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(0)
    x = (torch.randn(61, 67) * 30).round().to(dtype)  # differences are exact
    x[3], x[:, 5], x[7, 9], x[11, 13] = -torch.inf, -torch.inf, torch.inf, torch.nan
    x[20:22], x[:, 40:42] = torch.finfo(dtype).max, torch.finfo(dtype).min

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim)

    exact = torch.softmax(x.double(), dim).to(dtype)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        stator.compile(function)(x), exact, rtol=tolerance, atol=torch.finfo(dtype).tiny, equal_nan=True
    )
    exactly = stator.compile(function, options={"exact_rounding": True})(x)
    torch.testing.assert_close(exactly, torch.softmax(x, dim), rtol=0, atol=0, equal_nan=True)
