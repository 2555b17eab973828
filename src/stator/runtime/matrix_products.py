"""The choice between BLAS and oneDNN for a product of float32 matrices, and a product that chooses in each call.

oneDNN multiplies by weights that are not prepacked. It needs about 15 microseconds more than BLAS, and copies the
weight, which few rows do not repay. Where the number of rows changes between calls, so does the better library:
`stator::linear_product` is for these. benchmarks/products.py measures both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import library

from .toolchain import cpu_vendor

# Multiplications from which oneDNN takes 0.45 to 0.75 of the time of BLAS on an AMD processor with AVX-512.
WORTHWHILE = 1 << 20
# MKL has kernels of its own for Intel's processors, which take 0.2 to 0.97 of oneDNN's time. oneDNN is quicker (down to
# 0.6 of the time) for weights that do not fit into the cache of a core, and some rows. If the weight lies by rows, as
# in the gradient of a layer's input, MKL takes 0.45 to 0.95 of oneDNN's time at these sizes, too.
_LARGE_WEIGHT = 1 << 21
_SOME_ROWS = 4


@functools.cache
def is_tuned_blas() -> bool:
    """Return whether eager's BLAS has kernels of its own for this processor."""
    return torch.backends.mkl.is_available() and cpu_vendor() == "GenuineIntel"


def is_onednn_quicker(rows: int, inner: int, columns: int, by_rows: bool = False) -> bool:
    """Compare a product of [rows, inner] with [inner, columns] by oneDNN with one by BLAS. by_rows: whether the second
    matrix lies row by row in memory."""
    if is_tuned_blas():
        return not by_rows and rows >= _SOME_ROWS and inner * columns >= _LARGE_WEIGHT
    return rows * inner * columns >= WORTHWHILE


def linear_product(rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return [rows, inner] times [inner, columns], plus [columns], by the quicker library. All are float32. There may
    be gaps between `rows`."""
    given = (rows, matrix) if bias is None else (rows, matrix, bias)
    return product_of_sizes(*[one.shape for one in given])(*given)


def product_of_sizes(
    rows: Sequence[int], matrix: Sequence[int], bias: Sequence[int] | None = None
) -> Callable[..., torch.Tensor]:
    """Return what computes `linear_product` of arguments of these sizes, without a choice in each call."""
    if is_onednn_quicker(rows[0], matrix[0], matrix[1]):
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
