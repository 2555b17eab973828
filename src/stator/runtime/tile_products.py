"""Products of rows of bfloat16 or int8 with int8 weights, by kernels of ours in tiles of AMX. For bfloat16, libraries
take no such weights, and a loop that converts them takes as long as the product; for int8, they lay the weight out anew
in each call. With more rows these costs matter less, so that the choice is timed where it runs (`choices.py`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import library

from . import launch
from .build import build_kernels
from .choices import Alternatives, quickest_on_cpu
from .matrix_products import CACHE, typical_sizes
from .packed_products import implementations, product_run
from .toolchain import cpu_features

_COLUMNS, _BYTES = 32, 64  # columns, and bytes of a row, are their multiples
# Rows from which on kernels take less time than sums in loops
_LEAST_ROWS = {torch.bfloat16: 4, torch.int8: 2}
# Multiplications of a timed product: half a millisecond of one thread
_TIMED_WORK = 1 << 28
_LIBRARY, _TILES = "library", "tiles"
_FEATURES = frozenset(("amx_tile", "amx_bf16", "avx512bw", "avx512vl", "avx512dq"))


@dataclass(frozen=True, slots=True)
class _Kernel:
    symbol: str
    source: str


def _kernel(symbol: str, rows: str, result: str) -> _Kernel:
    return _Kernel(
        symbol,
        f"""#include "vec_tiles.h"
extern "C" void {symbol}(void *const *pointers, int64_t const *sizes) {{
    const bfloat16 *bias = sizes[3] ? (const bfloat16 *)pointers[2] : 0;
    const int8_t *w = (const int8_t *)pointers[1];
    multiply_in_tiles((const {rows} *)pointers[0], w, bias, ({result} *)pointers[3], sizes[0], sizes[1], sizes[2]);
}}
""",
    )


# By the dtype of rows
_KERNELS = {
    torch.bfloat16: _kernel("tile_product", "bfloat16", "bfloat16"),
    torch.int8: _kernel("integer_tile_product", "int8_t", "int32_t"),
}


@functools.cache
def has_tiles() -> bool:
    """Return whether this processor multiplies bfloat16 in tiles, and the system lets this process do so."""
    asks = getattr(torch._C._cpu, "_init_amx", None)
    return cpu_features() >= _FEATURES and asks is not None and bool(asks())


def has_tiles_for(inner: int, columns: int, dtype: torch.dtype) -> bool:
    """Return whether a kernel runs here, and takes a matrix of these sizes with rows of this dtype."""
    step = _BYTES // dtype.itemsize
    return dtype in _KERNELS and inner * columns > 0 == inner % step == columns % _COLUMNS and has_tiles()


def is_quicker(rows: int, inner: int, columns: int, dtype: torch.dtype, constant: bool) -> bool:
    """Return whether the kernel was timed to be quicker than libraries, where it runs; this may time both.

    constant: whether the weight never changes, so that libraries may find it converted and packed.
    """
    if not has_tiles_for(inner, columns, dtype) or rows < _LEAST_ROWS[dtype]:
        return False
    facts = (*typical_sizes(rows, inner, columns, _TIMED_WORK), dtype, constant and dtype is torch.bfloat16)
    key = tuple(str(fact) for fact in facts)
    return quickest_on_cpu("product in tiles", key, functools.partial(_runs, *facts), _LIBRARY) == _TILES


def _runs(rows: int, inner: int, columns: int, dtype: torch.dtype, converted: bool) -> Alternatives:
    """Products by turns with so many weights that a core's cache does not hold them. converted: to bfloat16, before."""
    weights = [torch.ones(columns, inner, dtype=torch.int8) for _ in range(1 + CACHE // (inner * columns))]
    x, matrices = torch.ones(rows, inner, dtype=dtype), [weight.t() for weight in weights]
    tiles = tile_product_of_sizes(x.shape, matrices[0].shape)
    if converted:
        wide = [weight.to(dtype) for weight in weights]
        names = implementations(dtype, True)
        libraries: Alternatives = {name: map(functools.partial(product_run, name, x), wide) for name in names}
    else:
        libraries = {_LIBRARY: [functools.partial(_by_libraries, x, matrix) for matrix in matrices]}
    return {**libraries, _TILES: [functools.partial(tiles, x, matrix) for matrix in matrices]}


def tile_product(rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return [rows, inner] times [inner, columns] of int8. Of bfloat16 rows, plus [columns] of bfloat16, it is rounded
    once; of int8 rows, it is int32. The columns of `matrix` are contiguous, without gaps between them, and `matrix` has
    sizes for which there are tiles."""
    given = (rows, matrix) if bias is None else (rows, matrix, bias)
    return tile_product_of_sizes(*[tuple(one.shape) for one in given])(*given)


@functools.lru_cache(maxsize=1024)
def tile_product_of_sizes(
    rows: Sequence[int], matrix: Sequence[int], bias: Sequence[int] | None = None
) -> Callable[..., torch.Tensor]:
    """Return what computes `tile_product` of arguments of these sizes."""
    if not has_tiles():  # another machine, or another process, chose the kernel
        return _by_libraries
    built, size = build_kernels(list(_KERNELS.values())), (rows[0], matrix[1])
    sizes = tuple(map(int, (rows[0], *matrix, bias is not None)))
    kernels = {
        dtype: launch.make_kernel(built[kernel.symbol], 4, kernel.symbol, sizes=sizes)
        for dtype, kernel in _KERNELS.items()
    }

    def product(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = x.new_empty(size, dtype=torch.int32 if x.dtype is torch.int8 else x.dtype)
        if rows[0]:
            kernels[x.dtype](x.contiguous(), matrix, matrix if bias is None else bias, out)
        return out

    return product


def _by_libraries(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if x.dtype is torch.int8:
        return torch._int_mm(x, matrix)
    return torch.nn.functional.linear(x, matrix.t().to(x.dtype), bias)


_library = library.Library("stator", "FRAGMENT")
_library.define("tile_product(Tensor rows, Tensor matrix, Tensor? bias=None) -> Tensor")
_library.impl("tile_product", tile_product, "CompositeExplicitAutograd")
