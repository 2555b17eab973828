"""Products of few rows with a matrix of contiguous columns, by a kernel of ours that reads the matrix from memory once.
Some libraries are as fast for one row alone; benchmarks/products.py measures both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import library

from . import launch
from .build import build_kernels
from .toolchain import cpu_features

# Rows from which on, and up to which, the kernel takes 0.3 to 0.75 of the time of eager's library (AVX-512)
LEAST_ROWS, MOST_ROWS = 4, 16
# Smaller matrices may stay in the cache of a core, where BLAS is quicker, and do not repay timing.
WORTHWHILE = 1 << 19
# A call takes longer than multiplying by fewer elements.
_LEAST = 1 << 15


@dataclass(frozen=True, slots=True)
class _Kernel:
    symbol: str
    source: str


# Rows that are multiplied at once: a kernel for fewer is less to compile
_AT_ONCE = (1, 2, 4, 6, 8)


def _kernel(rows: int) -> _Kernel:
    most = next(most for most in _AT_ONCE if most >= min(rows, _AT_ONCE[-1]))
    symbol = f"few_rows_product_{most}"
    return _Kernel(
        symbol,
        f"""#include "vec_products.h"
extern "C" void {symbol}(void *const *pointers, int64_t const *sizes) {{
    const float *x = (const float *)pointers[0], *w = (const float *)pointers[1], *bias = (const float *)pointers[2];
    multiply_few_rows<{most}>(x, w, sizes[3] ? bias : 0, (float *)pointers[3], sizes[0], sizes[1], sizes[2]);
}}
""",
    )


def is_possible(rows: int, inner: int, columns: int) -> bool:
    """Whether the kernel may be quicker than libraries for such sizes."""
    return rows <= MOST_ROWS and inner * columns >= _LEAST


def may_pay(rows: int, inner: int, columns: int) -> bool:
    """Whether the kernel may be quicker than libraries by a matrix that is not laid out for them."""
    return 0 < rows <= MOST_ROWS and inner * columns >= WORTHWHILE


def is_worthwhile(rows: int, inner: int, columns: int) -> bool:
    """The rule where nothing was timed: whether the kernel was measured to be quicker on processors like this one."""
    return rows >= LEAST_ROWS and may_pay(rows, inner, columns) and "avx512f" in cpu_features()


def few_rows_product(rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return [rows, inner] times [inner, columns], plus [columns]. All are float32. There may be gaps between `rows`;
    the columns of `matrix` are contiguous, without gaps between them, or else BLAS multiplies. Raises MissingToolchain
    without a C++ compiler."""
    given = (rows, matrix) if bias is None else (rows, matrix, bias)
    return few_rows_product_of_sizes(*[tuple(one.shape) for one in given])(*given)


@functools.lru_cache(maxsize=1024)
def few_rows_product_of_sizes(
    rows: Sequence[int], matrix: Sequence[int], bias: Sequence[int] | None = None
) -> Callable[..., torch.Tensor]:
    """Return what computes `few_rows_product` of arguments of these sizes."""
    found = _kernel(rows[0])
    address = build_kernels([found])[found.symbol]
    sizes = (rows[0], *matrix, bias is not None)
    kernel = launch.make_kernel(address, 4, found.symbol, sizes=tuple(map(int, sizes)))
    size, strides = (rows[0], matrix[1]), (1, matrix[0])

    def product(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        if matrix.stride() != strides:
            return torch.mm(x, matrix)
        out = x.new_empty(size)
        kernel(x.contiguous(), matrix, matrix, out)
        return out

    def product_and_bias(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if matrix.stride() != strides:
            return torch.addmm(bias, x, matrix)
        out = x.new_empty(size)
        kernel(x.contiguous(), matrix, bias, out)
        return out

    return product if bias is None else product_and_bias


_library = library.Library("stator", "FRAGMENT")
_library.define("few_rows_product(Tensor rows, Tensor matrix, Tensor? bias=None) -> Tensor")
_library.impl("few_rows_product", few_rows_product, "CompositeExplicitAutograd")
