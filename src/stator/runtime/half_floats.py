"""Choices between implementations of products and attention of half floats on CPUs.

A product of half floats is one of eager's library, or one of float32 between conversions. Where oneDNN takes a half
float on this processor, its products are quick. Elsewhere eager's library converts numbers one by one, which takes up
to a hundred times as long.

Attention of half floats is ATen's kernel, products of float32 with a softmax between them, or products of half floats,
as programs write them by hand. Each of them takes several times as long as another one on some processor.

So these choices are timed where they run (`choices.py`): for small matrices, and for few heads and lengths up to a
limit, in 2 to 15 milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch

from . import choices
from .matrix_products import onednn_takes, rounded, typical_sizes

KERNEL, WIDENED, HALVES = "kernel", "float32 products", "products"

# The share of the time of simpler ones in which an implementation of attention must win, and products of float32, which
# convert their matrices in each call
_MARGIN, _PRODUCTS_MARGIN = 0.97, 0.9
# Multiplications of a timed product: a library that is slow takes two milliseconds
_TIMED_WORK = 1 << 21

# Scores, and elements of keys, of a timed attention, if all threads have a head; its rows and keys, at most
_TIMED_SCORES, _TIMED_ELEMENTS, _MOST_LENGTH = 1 << 16, 1 << 17, 256
# Products of float32 and so many scores are slower than timed ones, since no cache holds these (docs/kernels.md).
_MANY_SCORES = 1 << 21

aten = torch.ops.aten


@choices.answered_by_timing
def are_products_quicker(heads: int, rows: int, keys: int, width: int, dtype: torch.dtype) -> tuple[bool, bool]:
    """Compare products of float32 with ATen's kernel, for so many heads of all batches; this may time both."""
    answer, is_provisional = _quickest((KERNEL, WIDENED), heads, rows, keys, width, dtype, False)
    return answer == WIDENED, is_provisional


def is_operator_quicker(heads: int, rows: int, keys: int, width: int, dtype: torch.dtype, biased: bool) -> bool:
    """Compare attention as one operator, which runs either way, with products of half floats; this may time them.

    biased: whether each score has a bias of its own."""
    answer, _ = _quickest((HALVES, KERNEL, WIDENED), heads, rows, keys, width, dtype, biased)
    return answer != HALVES


def _quickest(
    names: tuple[str, ...],
    heads: int,
    rows: int,
    keys: int,
    width: int,
    dtype: torch.dtype,
    biased: bool,
) -> tuple[str, bool]:
    """The answer, and whether it is the first name where timing may say another in a later process."""
    scores = heads * rows * keys
    if scores >= _MANY_SCORES:
        names = tuple(name for name in names if name != WIDENED)
    if scores == 0 or len(names) == 1:
        return names[0], False
    rows, keys = (rounded(min(length, _MOST_LENGTH)) for length in (rows, keys))
    most = min(_TIMED_SCORES // (rows * keys), _TIMED_ELEMENTS // (keys * width))
    heads = rounded(min(heads, max(torch.get_num_threads(), most)))
    facts = (*names, heads, rows, keys, width, str(dtype), biased)
    runs = functools.partial(_runs, names, heads, rows, keys, width, dtype, biased)
    return choices.choose_patiently("attention of half floats", facts, runs, names[0], _MARGIN)


def _runs(
    names: Iterable[str], heads: int, rows: int, keys: int, width: int, dtype: torch.dtype, biased: bool
) -> choices.Alternatives:
    given = [torch.full((heads, length, width), 0.5, dtype=dtype) for length in (rows, keys, keys)]
    wide = [one.float() for one in given]
    bias = torch.zeros(heads, rows, keys, dtype=dtype) if biased else None

    def by_products(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(query, key.transpose(1, 2))
        scores = scores if bias is None else scores + bias
        return torch.bmm(torch.softmax(scores, 2), value)

    def by_kernel() -> object:
        mask = None if bias is None else bias[None]
        return aten._scaled_dot_product_flash_attention_for_cpu(*(one[None] for one in given), attn_mask=mask)

    def by_wide_products() -> object:
        return by_products(*(one.copy_(half) for one, half in zip(wide, given, strict=True))).to(dtype)

    found: dict[str, Callable[[], object]] = {
        KERNEL: by_kernel,
        WIDENED: by_wide_products,
        HALVES: lambda: by_products(*given),
    }
    return {name: [found[name]] for name in names}


# ---- products


@choices.answered_by_timing
def is_float32_quicker(rows: int, inner: int, columns: int, dtype: torch.dtype, by_rows: bool) -> tuple[bool, bool]:
    """Compare a product of [rows, inner] with [inner, columns] as float32 with one of this dtype; this may time both.
    by_rows: whether the second matrix lies row by row in memory."""
    if onednn_takes(dtype) or rows * inner * columns == 0:
        return False, False
    sizes = typical_sizes(rows, inner, columns, _TIMED_WORK)
    runs = functools.partial(_runs_of_product, *sizes, dtype, by_rows)
    facts = (*sizes, str(dtype), by_rows)
    chosen, is_provisional = choices.choose_patiently(
        "product of half-float matrices", facts, runs, HALVES, _PRODUCTS_MARGIN
    )
    return chosen == WIDENED, is_provisional


def _runs_of_product(rows: int, inner: int, columns: int, dtype: torch.dtype, by_rows: bool) -> choices.Alternatives:
    matrix = torch.full((inner, columns) if by_rows else (columns, inner), 0.5, dtype=dtype)
    given = [torch.full((rows, inner), 0.5, dtype=dtype), matrix if by_rows else matrix.t()]
    wide, out = [one.float() for one in given], torch.empty(rows, columns, dtype=dtype)

    def by_float32() -> torch.Tensor:
        return out.copy_(torch.mm(*(one.copy_(half) for one, half in zip(wide, given, strict=True))))

    return {HALVES: [lambda: torch.mm(*given, out=out)], WIDENED: [by_float32]}
