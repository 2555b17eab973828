"""Products of bfloat16 rows with int8 weights by a kernel of ours in tiles of AMX. Libraries take no such weights: a
loop would convert them first, which takes as long as the product itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import library

from . import launch
from .build import build_kernels
from .toolchain import cpu_features

_STEP = 32  # sizes of the matrix are its multiples
# Rows from which on, and up to which, the kernel takes less time than sums in loops, and than oneDNN with a converted
# weight: 0.3 to 0.9 of either
LEAST_ROWS, MOST_ROWS = 4, 512
_FEATURES = frozenset(("amx_tile", "amx_bf16", "avx512bw", "avx512vl", "avx512dq"))


@dataclass(frozen=True, slots=True)
class _Kernel:
    symbol: str
    source: str


_KERNEL = _Kernel(
    "tile_product",
    """#include "vec_tiles.h"
extern "C" void tile_product(void *const *pointers, int64_t const *sizes) {
    const bfloat16 *x = (const bfloat16 *)pointers[0], *bias = (const bfloat16 *)pointers[2];
    const int8_t *w = (const int8_t *)pointers[1];
    multiply_in_tiles(x, w, sizes[3] ? bias : 0, (bfloat16 *)pointers[3], sizes[0], sizes[1], sizes[2]);
}
""",
)


@functools.cache
def has_tiles() -> bool:
    """Return whether this processor multiplies bfloat16 in tiles, and the system lets this process do so."""
    asks = getattr(torch._C._cpu, "_init_amx", None)
    return cpu_features() >= _FEATURES and asks is not None and bool(asks())


def has_tiles_for(inner: int, columns: int) -> bool:
    """Return whether the kernel runs here, and takes a matrix of these sizes."""
    return inner > 0 and columns > 0 and inner % _STEP == 0 and columns % _STEP == 0 and has_tiles()


def is_worthwhile(rows: int, inner: int, columns: int) -> bool:
    """Return whether the kernel was measured to be quicker than loops and libraries, where it runs."""
    return LEAST_ROWS <= rows <= MOST_ROWS and has_tiles_for(inner, columns)


def tile_product(rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return [rows, inner] of bfloat16 times [inner, columns] of int8, plus [columns] of bfloat16, rounded once. The
    columns of `matrix` are contiguous, without gaps between them. Sizes of
    the matrix are multiples of 32."""
    given = (rows, matrix) if bias is None else (rows, matrix, bias)
    return tile_product_of_sizes(*[tuple(one.shape) for one in given])(*given)


@functools.lru_cache(maxsize=1024)
def tile_product_of_sizes(
    rows: Sequence[int], matrix: Sequence[int], bias: Sequence[int] | None = None
) -> Callable[..., torch.Tensor]:
    """Return what computes `tile_product` of arguments of these sizes."""
    address, size = build_kernels([_KERNEL])[_KERNEL.symbol], (rows[0], matrix[1])
    kernel = launch.make_kernel(address, 4, _KERNEL.symbol, sizes=tuple(map(int, (rows[0], *matrix, bias is not None))))

    def product(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = x.new_empty(size)
        if not rows[0]:
            return out
        kernel(x.contiguous(), matrix, matrix if bias is None else bias, out)
        return out

    return product


_library = library.Library("stator", "FRAGMENT")
_library.define("tile_product(Tensor rows, Tensor matrix, Tensor? bias=None) -> Tensor")
_library.impl("tile_product", tile_product, "CompositeExplicitAutograd")
