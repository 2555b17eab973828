"""The choice between eager's library (BLAS), oneDNN's linear kernel and our kernel for few rows, for a product of
float32 matrices, and a product that chooses in each call. (For bfloat16, eager's library is oneDNN.)

oneDNN multiplies by weights that are not prepacked. It needs about 15 microseconds more than BLAS, and copies the
weight, which few rows do not repay; all else depends on the processor. So the choice is timed, on the processor and for
typical sizes near to those asked for, each for a few milliseconds once (`choices.py`). A rule decides small products,
and what could not be timed. Our kernel for few rows is timed beside both, from the second process that asks on.

Where the number of rows changes between calls, so does the better library: `stator::linear_product` is for these.
benchmarks/products.py measures both.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import library

from stator.prims.onednn import is_half_float, onednn_enabled

from . import choices, few_rows
from .choices import choose_in_next_process, choose_on_cpu, choose_patiently, known_choice
from .few_rows import few_rows_product_of_sizes
from .toolchain import cpu_vendor

BLAS, ONEDNN, FEW_ROWS = "blas", "onednn", "few rows"

# Multiplications from which oneDNN may be quicker than BLAS: its calls take 10 to 20 microseconds more.
WORTHWHILE = 1 << 20
# MKL has kernels of its own for Intel's processors. oneDNN takes 0.45 to 0.9 of their time for large weights and some
# rows; with fewer and with many rows, or where the weight lies by rows (as in the gradient of a layer's input), 0.95 to
# 2.5 of it.
_SOME_ROWS = range(4, 65)
_LARGE_WEIGHT = 1 << 21

# Fewer multiplications stay with BLAS, as in eager: a call of oneDNN takes too large a part of their time (1.1 to 1.3
# of that of BLAS for 12 sizes of 2^20 to 2^22, one core of an EPYC on which larger ones gain), and so does timing.
_LEAST_WORK = 1 << 22
_TIMED_FROM = 1 << 21
# Sizes that are timed have at most so many rows, columns, and elements of the weight. Larger sizes behave like these.
_MOST_ROWS, _MOST_COLUMNS, _MOST_WEIGHT = 1024, 3072, 5 << 20
# Multiplications of a timed run, of each thread: 0.7 milliseconds, and with max-autotune three or four.
_TIMED_WORK, _TUNED_WORK = 3 << 24, 1 << 28
# Elements that push a weight out of a core's cache: a model's weights do not lie there.
CACHE = 1 << 21
# The share of the time of BLAS in which oneDNN must win, where the rule says BLAS, and where it says oneDNN: sizes near
# to the timed ones may be slower, and timing is never exact. On Zen 4 both take the same time for 128 x 512 x 512, but
# BLAS 1.1 to 1.3 times as long for wider weights.
_MARGIN, _RULED_MARGIN = 0.85, 1.1
# The share of the time of libraries in which our kernel for few rows must win
_FEW_ROWS_MARGIN = 0.97


@functools.cache
def is_tuned_blas() -> bool:
    """Return whether eager's BLAS has kernels of its own for this processor."""
    return torch.backends.mkl.is_available() and cpu_vendor() == "GenuineIntel"


def onednn_takes(dtype: torch.dtype) -> bool:
    """Return whether this build multiplies matrices of this dtype by oneDNN, with float32 sums."""
    return bool(_linear_pointwise) and ((dtype is torch.float32 and onednn_enabled()) or is_half_float(dtype))


def is_known_quicker(rows: int, inner: int, columns: int, by_rows: bool = False) -> bool:
    """`is_onednn_quicker` without timing: by the rule where nothing was timed."""
    return _is_known_quicker(rows, inner, columns, by_rows, torch.get_num_threads())[0]


@choices.answered_by_timing
def is_onednn_quicker(
    rows: int, inner: int, columns: int, by_rows: bool = False, tunes: bool = False
) -> tuple[bool, bool]:
    """Compare a product of [rows, inner] with [inner, columns] by oneDNN with one by BLAS; this may time both.

    by_rows: whether the second matrix lies row by row in memory. tunes: time these very sizes, however long all timings
    take.
    """
    threads = torch.get_num_threads()
    if rows * inner * columns < _TIMED_FROM:
        return _is_known_quicker(rows, inner, columns, by_rows, threads)
    if tunes:
        sizes = (rows, *_limited(inner, columns, _TUNED_WORK * threads // rows))
    else:
        sizes = typical_sizes(rows, inner, columns, _TIMED_WORK * threads)
    ruled = _is_ruled_quicker(rows, inner, columns, by_rows)
    margin, runs = _RULED_MARGIN if ruled else _MARGIN, functools.partial(_runs, *sizes, by_rows)
    rule, facts = ONEDNN if ruled else BLAS, _facts(*sizes, by_rows, ruled)
    choose = choose_on_cpu if tunes else choose_patiently
    chosen, is_provisional = choose(_KIND, facts, runs, rule, margin)
    return chosen == ONEDNN, is_provisional


@functools.lru_cache(maxsize=4096)
def _is_known_quicker(rows: int, inner: int, columns: int, by_rows: bool, threads: int) -> tuple[bool, bool]:
    ruled = _is_ruled_quicker(rows, inner, columns, by_rows)
    if rows * inner * columns < _TIMED_FROM:
        return ruled, False
    sizes = typical_sizes(rows, inner, columns, _TIMED_WORK * threads)
    chosen = known_choice(_KIND, _facts(*sizes, by_rows, ruled))
    return ruled if chosen is None else chosen == ONEDNN, chosen is None


@choices.answered_by_timing
def are_few_rows_quicker(rows: int, inner: int, columns: int, tunes: bool = False) -> tuple[bool, bool]:
    """Compare our kernel for few rows, by a matrix of contiguous columns, with libraries; this may time them, except in
    the first process that asks, which does not wait for the kernel to compile. tunes: time now."""
    if not few_rows.may_pay(rows, inner, columns):
        return False, False
    sizes = _few_rows_sizes(rows, inner, columns)
    names = (BLAS, ONEDNN, FEW_ROWS) if onednn_takes(torch.float32) else (BLAS, FEW_ROWS)
    choose = choose_on_cpu if tunes else choose_in_next_process
    rule = FEW_ROWS if few_rows.is_worthwhile(rows, inner, columns) else BLAS
    runs = functools.partial(_runs, *sizes, False, names)
    chosen, is_provisional = choose(_FEW_ROWS_KIND, sizes, runs, rule, _FEW_ROWS_MARGIN)
    return chosen == FEW_ROWS, is_provisional


@functools.lru_cache(maxsize=4096)
def _are_few_rows_known_quicker(rows: int, inner: int, columns: int, threads: int) -> bool:
    """`are_few_rows_quicker` without timing: by the rule where nothing was timed."""
    if not few_rows.may_pay(rows, inner, columns):
        return False
    chosen = known_choice(_FEW_ROWS_KIND, _few_rows_sizes(rows, inner, columns))
    return few_rows.is_worthwhile(rows, inner, columns) if chosen is None else chosen == FEW_ROWS


def _is_ruled_quicker(rows: int, inner: int, columns: int, by_rows: bool) -> bool:
    """What measurements on a few processors say; on others it is BLAS, as in eager."""
    if not torch.backends.mkl.is_available():
        return False
    if is_tuned_blas():
        return not by_rows and rows in _SOME_ROWS and inner * columns >= _LARGE_WEIGHT
    return rows * inner * columns >= _LEAST_WORK


# ---- timing

_KIND, _FEW_ROWS_KIND = "matrix product", "product of few rows"


def _facts(rows: int, inner: int, columns: int, by_rows: bool, ruled: bool) -> tuple[Any, ...]:
    return rows, inner, columns, by_rows, ruled, torch.get_float32_matmul_precision()


def typical_sizes(rows: int, inner: int, columns: int, work: int) -> tuple[int, int, int]:
    """The sizes that are timed in place of these. Most models have sizes like these, or these multiples."""
    rows = rounded(min(rows, _MOST_ROWS))
    return rows, *typical_weight(inner, columns, work // rows)


def _few_rows_sizes(rows: int, inner: int, columns: int) -> tuple[int, int, int]:
    """What is timed for few rows: the time is that of reading the weight, so that a part of it is enough."""
    return rounded(rows), *typical_weight(inner, columns, few_rows.WORTHWHILE * 2)


def typical_weight(inner: int, columns: int, most: int) -> tuple[int, int]:
    """The size that is timed in place of this one, of at most so many elements."""
    return _limited(rounded(min(inner, _MOST_COLUMNS)), rounded(min(columns, _MOST_COLUMNS)), most)


def rounded(size: int) -> int:
    """The largest power of two, or three times one, that is not above the size."""
    power = 1 << (max(size, 1).bit_length() - 1)
    return power + power // 2 if size >= power + power // 2 else power


def _limited(inner: int, columns: int, most: int) -> tuple[int, int]:
    """A smaller matrix of at most so many elements."""
    while inner * columns > min(_MOST_WEIGHT, most) and max(inner, columns) > 1:
        inner, columns = (inner, columns // 2) if columns >= inner else (inner // 2, columns)
    return inner, columns


_warm: set[str] = set()  # what this process has run; a library's first runs take so long that they would end its timing


def _runs(
    rows: int, inner: int, columns: int, by_rows: bool, names: Iterable[str] = (BLAS, ONEDNN)
) -> choices.Alternatives:
    count = inner * columns
    memory = torch.full((count + CACHE,), 0.5, dtype=torch.float32, device="cpu")
    strides = (1, columns) if by_rows else (inner, 1)
    places = range(0, CACHE + 1, count)
    weights = itertools.cycle([memory.as_strided((columns, inner), strides, place) for place in places])
    x = torch.full((rows, inner), 0.5, dtype=torch.float32, device="cpu")
    runs = {name: partial(_by_next, product_by(name, x, columns), weights) for name in names}
    if _warm.issuperset(runs):
        return {name: [run] for name, run in runs.items()}
    _warm.update(runs)
    return choices.warmed_up(runs)


def _by_next(product: Callable[[torch.Tensor], torch.Tensor], weights: Iterator[torch.Tensor]) -> torch.Tensor:
    return product(next(weights).t())


def product_by(name: str, x: torch.Tensor, columns: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What multiplies rows by a matrix of so many columns, in this way, for timing. FEW_ROWS needs contiguous ones."""
    if name == ONEDNN:
        return lambda matrix: _linear_pointwise(x, matrix.t(), None, "none", [], "")  # type: ignore[misc, no-any-return]
    if name == FEW_ROWS:
        few = few_rows_product_of_sizes(tuple(x.shape), (x.shape[1], columns))
        return lambda matrix: few(x, matrix)
    out = x.new_empty(len(x), columns)
    return lambda matrix: torch.mm(x, matrix, out=out)


# ---- a product that chooses in each call


def linear_product(rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return [rows, inner] times [inner, columns], plus [columns], by the quickest implementation. All are float32.
    There may be gaps between `rows`."""
    given = (rows, matrix) if bias is None else (rows, matrix, bias)
    return product_of_sizes(*[one.shape for one in given])(*given)


def product_of_sizes(
    rows: Sequence[int], matrix: Sequence[int], bias: Sequence[int] | None = None
) -> Callable[..., torch.Tensor]:
    """Return what computes `linear_product` of arguments of these sizes, without a choice in each call."""
    if _are_few_rows_known_quicker(rows[0], matrix[0], matrix[1], torch.get_num_threads()):
        return few_rows_product_of_sizes(*[tuple(one) for one in (rows, matrix, bias) if one is not None])
    if is_known_quicker(rows[0], matrix[0], matrix[1]):
        return _by_onednn
    return torch.mm if bias is None else _by_blas


_linear_pointwise = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _by_onednn(rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return _linear_pointwise(rows.contiguous(), matrix.t(), bias, "none", [], "")  # type: ignore[misc, no-any-return]


def _by_blas(rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, rows, matrix)


_library = library.Library("stator", "FRAGMENT")
_library.define("linear_product(Tensor rows, Tensor matrix, Tensor? bias=None) -> Tensor")
_library.impl("linear_product", linear_product, "CompositeExplicitAutograd")
