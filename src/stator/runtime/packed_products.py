"""Products and convolutions with weights that do not change: implementations of torch's libraries that lay a weight out
anew, once, and the choice between them by timing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from . import few_rows
from .choices import Alternatives, quickest_on_cpu
from .matrix_products import BLAS, CACHE, FEW_ROWS, ONEDNN, is_tuned_blas, onednn_takes

# Timed products have at most so many multiplications (0.3 ms on one core), with fewer columns if need be.
_TIMED_WORK = 1 << 25
_COLUMN_BLOCK = 64
# Columns of the parts of a weight that are timed beside kernels in tiles
TILED_BLOCK = 192
# Reading a small weight from memory takes less time than a call, so that it is timed in so many places at most: laying
# out as many as fill the caches took a second for some sizes.
_MOST_PARTS = 32
# Rows beside tiles are at least so many of them, so that little is wasted where they end.
_LEAST_ROWS = 64

# Fewer rows do not repay the time of a call of these libraries.
_SOME_ROWS = 4

MKL = "mkl"

# What multiplies rows by each part of a weight, of several kernels
Own = Callable[[torch.Tensor, Sequence[torch.Tensor]], Iterable[Iterable[Callable[[], Any]]]]


def _operator(namespace: str, name: str) -> Any:
    """A function of torch that not every build has; or None."""
    return getattr(getattr(torch.ops, namespace), name, None)


def implementations(dtype: torch.dtype, rows_are_known: bool, sizes: Sequence[int] = ()) -> tuple[str, ...]:
    """The implementations of a product with a constant weight in this build, the simplest first. MKL packs a weight for
    a number of rows. sizes: rows, inner and columns, for which our kernel may be quick."""
    found = [BLAS]
    if dtype is torch.float32 and rows_are_known and sizes and few_rows.is_possible(*sizes):
        found.append(FEW_ROWS)
    if onednn_takes(dtype) and _operator("mkldnn", "_reorder_linear_weight") is not None:
        found.append(ONEDNN)
    has_mkl = torch.backends.mkl.is_available() and _operator("mkl", "_mkl_linear") is not None
    if has_mkl and dtype is torch.float32 and rows_are_known:
        found.append(MKL)
    return tuple(found)


def quickest_product(
    rows: int, weight: torch.Tensor, rows_are_known: bool, own: Sequence[str] = (), runs_of_own: Own | None = None
) -> str:
    """The implementation that multiplies [rows, inner] with a weight [columns, inner] in the least time.

    No weight lies in a core's cache, as in a network of many. own: kernels that also do what follows the product, the
    first by rule the best, whose runs `runs_of_own` makes. Behind libraries a pass over the result is timed then, too.
    """
    columns, inner = weight.shape
    libraries = implementations(weight.dtype, rows_are_known, (rows, inner, columns))
    names = (*own, *libraries)
    if len(names) == 1:
        return names[0]
    along = "columns" if weight.stride(0) == 1 else "rows"

    def alternatives() -> Alternatives:
        block, most_rows, memory = _COLUMN_BLOCK, rows, CACHE
        if own:  # so many alternatives push each other's weights out of a core's cache
            block, memory = TILED_BLOCK, 0
            most_rows = max(_LEAST_ROWS, _TIMED_WORK // (block * inner))
        x = torch.full((min(rows, most_rows), inner), 0.5, dtype=weight.dtype)
        part = block if own else max(block, _TIMED_WORK // x.numel() // block * block)
        size = (min(columns, part), inner)
        count = 2 * min(1 + memory // prod(size), _MOST_PARTS)
        parts = [torch.full(size, 0.5, dtype=weight.dtype) for _ in range(count)]
        if along == "columns":
            parts = [part.t().contiguous().t() for part in parts]
        runs = dict(zip(own, runs_of_own(x, parts[:1]), strict=True)) if runs_of_own else {}
        # what reads the weight as it is, too, must not find it in the cache behind BLAS
        unpacked = {BLAS: parts[::2], FEW_ROWS: parts[1::2]}
        for name in libraries:
            products = map(partial(product_run, name, x), unpacked.get(name, parts[: 1 + len(parts) // 4]))
            runs[name] = (partial(_with_pass, run) for run in products) if own else products
        return runs

    packing = [name for name in (MKL, ONEDNN) if name in names and (name != MKL or is_tuned_blas())]
    rule = packing[0] if packing and rows >= _SOME_ROWS else BLAS
    is_worthwhile = few_rows.is_worthwhile(rows, inner, columns) or (rows < few_rows.LEAST_ROWS and not is_tuned_blas())
    if FEW_ROWS in names and is_worthwhile:
        rule = FEW_ROWS
    facts = rows, inner, columns, str(weight.dtype), along, *names
    return quickest_on_cpu("product by a far weight", facts, alternatives, next(iter(own), rule))


def _with_pass(run: Callable[[], Any]) -> None:
    run().relu_()


def product_run(name: str, x: torch.Tensor, weight: torch.Tensor) -> Callable[[], Any]:
    """Return what multiplies [rows, inner] by a weight [columns, inner], packed now, as this implementation does."""
    rows = x.shape[0]
    if name == BLAS:
        out, matrix = torch.empty(rows, weight.shape[0], dtype=x.dtype), weight.t()
        return lambda: torch.mm(x, matrix, out=out)
    packed = packed_weight(name, rows, weight)
    if name == FEW_ROWS:
        matrix = packed.t()
        few = few_rows.few_rows_product_of_sizes(tuple(x.shape), tuple(matrix.shape))
        return lambda: few(x, matrix)
    if name == ONEDNN:
        linear = torch.ops.mkldnn._linear_pointwise.default._op
        return lambda: linear(x, packed, None, "none", [], "")
    product, shape = torch.ops.mkl._mkl_linear.default._op, without_data(weight)
    return lambda: product(x, packed, shape, None, rows)


def packed_weight(name: str, rows: int, weight: torch.Tensor) -> torch.Tensor:
    """The weight [columns, inner] as ONEDNN or MKL wants it, an opaque tensor; for FEW_ROWS row by row. rows: what it
    is best for; MKL takes no other number."""
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
        plain = weight.contiguous()
        if name == FEW_ROWS:
            return plain
        if name == ONEDNN:
            return torch.ops.mkldnn._reorder_linear_weight(plain, rows)  # type: ignore[no-any-return]
        return torch.ops.mkl._mkl_reorder_linear_weight(plain, rows)  # type: ignore[no-any-return]


def without_data(weight: torch.Tensor) -> torch.Tensor:
    """The original weight that MKL's product asks for. It reads the sizes alone, and the data if it was packed for
    another number of rows, which would show: these are all NaN."""
    return torch.full((1, 1), float("nan"), dtype=weight.dtype).expand(weight.shape)


def packs_convolutions(dtype: torch.dtype) -> bool:
    """Whether this build has convolutions with packed weights of this dtype."""
    return onednn_takes(dtype) and _operator("mkldnn", "_reorder_convolution_weight") is not None


def packed_kernel(
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    images: Sequence[int],
) -> torch.Tensor:
    """The kernel of a convolution as oneDNN wants it. images: the size of the data for which it is best."""
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
        pack = torch.ops.mkldnn._reorder_convolution_weight
        return pack(weight, padding, stride, dilation, groups, images)  # type: ignore[no-any-return]


def packed_convolution_run(
    images: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Callable[[], Any]:
    """Return what convolves images with a kernel, packed now, and then passes over the result."""
    packed = packed_kernel(weight, stride, padding, dilation, groups, images.shape)
    convolution = torch.ops.mkldnn._convolution_pointwise.default._op
    return lambda: _with_pass(
        lambda: convolution(images, packed, None, padding, stride, dilation, groups, "none", [], "")
    )
