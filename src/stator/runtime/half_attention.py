"""The choice between implementations of attention of half floats on CPUs: ATen's kernel, products of float32 with a
softmax between them, and products of half floats, as programs write them by hand.

Each of them takes several times as long as another one on some processor: it depends on the instructions for half
floats, and on the library that has products for these. So the choice is timed where it runs (`choices.py`), for few
heads and lengths up to a limit, in 2 to 15 milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch

from . import choices
from .matrix_products import rounded

_KIND, _MARGIN = "attention of half floats", 0.97
KERNEL, WIDENED, HALVES = "kernel", "float32 products", "products"

# Scores, and elements of keys, of a timed attention, if all threads have a head; its rows and keys, at most
_TIMED_SCORES, _TIMED_ELEMENTS, _MOST_LENGTH = 1 << 16, 1 << 17, 256
# Products of float32 and so many scores are slower than timed ones, since no cache holds these (docs/kernels.md).
_MANY_SCORES = 1 << 21

aten = torch.ops.aten


def are_products_quicker(heads: int, rows: int, keys: int, width: int, dtype: torch.dtype) -> bool:
    """Compare products of float32 with ATen's kernel, for so many heads of all batches; this may time both. The answer
    stays in a process."""
    asked = (heads, rows, keys, width, dtype)
    answer, is_provisional = _quickest((KERNEL, WIDENED), *asked, False, torch.get_num_threads())
    if is_provisional:
        choices.note_provisional((are_products_quicker, asked, answer == WIDENED))
    return answer == WIDENED


def is_operator_quicker(heads: int, rows: int, keys: int, width: int, dtype: torch.dtype, biased: bool) -> bool:
    """Compare attention as one operator, which runs either way, with products of half floats; this may time them.

    biased: whether each score has a bias of its own."""
    answer, _ = _quickest((HALVES, KERNEL, WIDENED), heads, rows, keys, width, dtype, biased, torch.get_num_threads())
    return answer != HALVES


@functools.lru_cache(maxsize=1024)
def _quickest(
    names: tuple[str, ...],
    heads: int,
    rows: int,
    keys: int,
    width: int,
    dtype: torch.dtype,
    biased: bool,
    threads: int,
) -> tuple[str, bool]:
    """The answer, and whether it is the first name where timing may say another in a later process."""
    scores = heads * rows * keys
    if scores >= _MANY_SCORES:
        names = tuple(name for name in names if name != WIDENED)
    if scores == 0 or len(names) == 1:
        return names[0], False
    rows, keys = (rounded(min(length, _MOST_LENGTH)) for length in (rows, keys))
    most = min(_TIMED_SCORES // (rows * keys), _TIMED_ELEMENTS // (keys * width))
    heads = rounded(min(heads, max(threads, most)))
    facts = (*names, heads, rows, keys, width, str(dtype), biased)
    runs = functools.partial(_runs, names, heads, rows, keys, width, dtype, biased)
    return choices.choose_patiently(_KIND, facts, runs, names[0], _MARGIN)


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
