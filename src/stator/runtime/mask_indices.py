"""The kernels of `stator::true_indices`: one counts the Trues of each part of a mask, the other writes indices, each
part at its place. Built when a program first needs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from . import launch
from .build import build_kernels

_FEW = 1024  # elements that the library is as quick for
_PART = 1 << 15  # elements that one thread counts and writes at once: a fraction of a core's cache


def true_indices(mask: torch.Tensor) -> torch.Tensor:
    """See the operator."""
    if mask.numel() <= _FEW:
        return mask.nonzero().t()
    mask, shape = mask.contiguous(), mask.shape
    parts, count, write = _kernels(shape)
    ends = torch.empty(parts + 1, dtype=torch.int64)
    count(mask, ends)
    found = torch.empty((len(shape), int(ends[-1])), dtype=torch.int64)
    if found.shape[1]:
        write(mask, ends, found)
    return found


@lru_cache(maxsize=1024)
def _kernels(shape: torch.Size) -> tuple[int, Callable[..., None], Callable[..., None]]:
    """The number of parts, and the kernels for masks of this shape. Built kernels are looked up by their text."""
    addresses, size = build_kernels([_COUNT, _WRITE]), math.prod(shape)
    small, sizes = size <= _PART, (size, _PART, len(shape), *shape)
    return (
        -(-size // _PART),
        launch.make_kernel(addresses[_COUNT.symbol], 2, _COUNT.symbol, small=small, sizes=sizes),
        launch.make_kernel(addresses[_WRITE.symbol], 3, _WRITE.symbol, small=small, sizes=sizes),
    )


class _Kernel(NamedTuple):
    symbol: str
    source: str


# Any byte but zero is True, as in eager's reads of bools.
_COUNT = _Kernel(
    "count_trues",
    """
namespace count_trues_ {
INLINE int64_t trues_of_word(uint64_t word) {
    const uint64_t low = 0x7f7f7f7f7f7f7f7f;
    return __builtin_popcountll((((word & low) + low) | word) & ~low);
}
static int64_t trues(const uint8_t *mask, int64_t count) {
    int64_t total = 0, at = 0;
    for (; at + 8 <= count; at += 8) {
        uint64_t word;
        __builtin_memcpy(&word, mask + at, 8);
        total += trues_of_word(word);
    }
    for (; at < count; ++at) total += mask[at] != 0;
    return total;
}
}
extern "C" void count_trues(void *const *pointers, int64_t const *sizes) {
    const uint8_t *mask = (const uint8_t *)pointers[0];
    int64_t *ends = (int64_t *)pointers[1];
    const int64_t size = sizes[0], part = sizes[1], parts = (size + part - 1) / part;
    in_parallel(threads_for(size / 8), [=] {
        #pragma omp for schedule(static)
        for (int64_t at = 0; at < parts; ++at) {
            const int64_t begin = at * part, rest = size - begin;
            ends[at + 1] = count_trues_::trues(mask + begin, rest < part ? rest : part);
        }
    });
    ends[0] = 0;
    for (int64_t at = 0; at < parts; ++at) ends[at + 1] += ends[at];
}
""",
)
_WRITE = _Kernel(
    "write_true_indices",
    """
#if defined(SIMD_AVX512) && __has_builtin(__builtin_ia32_ptestmb512) && __has_builtin(__builtin_ia32_compressdi512_mask)
#define COMPRESSES 1
#endif
namespace write_true_indices_ {
#ifdef COMPRESSES
typedef char block_of_bytes __attribute__((vector_size(64), aligned(1), may_alias));
typedef long long eight_places __attribute__((vector_size(64)));
#endif
INLINE uint64_t trues_of_block(const uint8_t *mask) {  // one bit for each of 64 bytes
#ifdef COMPRESSES
    const block_of_bytes bytes = *(const block_of_bytes *)mask;
    return __builtin_ia32_ptestmb512(bytes, bytes, -1);
#else
    uint64_t found = 0;
    for (int at = 0; at < 64; ++at) found |= (uint64_t)(mask[at] != 0) << at;
    return found;
#endif
}
INLINE int64_t *write_block(int64_t *found, uint64_t trues, int64_t begin) {
#ifdef COMPRESSES
    if (__builtin_popcountll(trues) > 6) {  // 8 positions at a time
        eight_places places = begin + (eight_places){0, 1, 2, 3, 4, 5, 6, 7};
        for (int at = 0; at < 8; ++at, trues >>= 8, places += 8) {
            const uint8_t here = (uint8_t)trues;
            const int count = __builtin_popcount(here);
            const eight_places chosen = __builtin_ia32_compressdi512_mask(places, places, here);
            __builtin_ia32_storedqudi512_mask((long long *)found, chosen, (uint8_t)((1u << count) - 1));
            found += count;
        }
        return found;
    }
#else
    if (trues == ~(uint64_t)0) {
        for (int at = 0; at < 64; ++at) *found++ = begin + at;
        return found;
    }
#endif
    for (; trues; trues &= trues - 1) *found++ = begin + __builtin_ctzll(trues);
    return found;
}
static void write(const uint8_t *mask, int64_t begin, int64_t end, int64_t *found, int64_t count, int64_t rank,
                  const int64_t *shape) {
    const int64_t last = shape[rank - 1];
    int64_t *inner = found + (rank - 1) * count;
    for (int64_t row = 0, row_end = 0; begin < end; begin += 64) {
        uint64_t trues = 0;
        if (end - begin >= 64) trues = trues_of_block(mask + begin);
        else for (int64_t at = 0; at < end - begin; ++at) trues |= (uint64_t)(mask[begin + at] != 0) << at;
        while (trues) {  // those of one row after the other
            const int64_t first = begin + __builtin_ctzll(trues);
            if (first >= row_end) row = first / last, row_end = (row + 1) * last;
            const uint64_t here = row_end - begin >= 64 ? trues : trues & (((uint64_t)1 << (row_end - begin)) - 1);
            const int64_t number = __builtin_popcountll(here);
            inner = write_block(inner, here, begin - (row_end - last));
            trues ^= here;
            for (int64_t dim = rank - 2, outside = row; dim >= 0; outside /= shape[dim--]) {
                const int64_t index = dim ? outside % shape[dim] : outside;
                for (int64_t at = 0; at < number; ++at) found[dim * count + at] = index;
            }
            found += number;
        }
    }
}
}
extern "C" void write_true_indices(void *const *pointers, int64_t const *sizes) {
    const uint8_t *mask = (const uint8_t *)pointers[0];
    const int64_t *ends = (const int64_t *)pointers[1];
    int64_t *found = (int64_t *)pointers[2];
    const int64_t size = sizes[0], part = sizes[1], parts = (size + part - 1) / part;
    in_parallel(threads_for(size / 4), [=] {
        #pragma omp for schedule(static)
        for (int64_t at = 0; at < parts; ++at) {
            const int64_t begin = at * part, end = begin + part;
            write_true_indices_::write(mask, begin, end < size ? end : size, found + ends[at], ends[parts],
                                         sizes[2], sizes + 3);
        }
    });
}
""",
)
