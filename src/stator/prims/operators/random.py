"""Random numbers as functions of (seed, stream, element): the `stator::` operators and their eager reference.

The bits come from the counter-based generator Philox 4x32-10 (J. K. Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011). Only `stator::seed` draws from torch's generator; all others are pure, so that a compiler may fuse,
repeat or merge them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta, record, shape_rule
from stator.prims.special.normal_quantile import normal_quantile

# Philox runs on 16 counters at a time: element e of a stream is word (e // 16) % 4 of the counter e // 64 * 16 + e %
# 16, so that one evaluation over 16 lanes fills 64 neighbours.
BLOCK, LANES = 64, 16
_MASK = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

# The leading bits of a uniform number: all that the dtype holds exactly below 1, as in eager.
UNIFORM_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
# The last float32 below 1. In the open interval all 32 bits count, which matters for logarithms near 0.
LARGEST_OPEN = 1 - 2.0**-24
OPEN_DTYPES = (torch.float64, torch.float32)
NORMAL_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# For at most this many integers, scaled 32 bits are even to 1 part in 65536; for more, 63 bits are divided.
SMALL_RANGE = 1 << 16
LARGEST_RANGE = (1 << 63) - 1


def threshold(p: float) -> int:
    """Return the number of 32-bit words that mean True with probability `p`: a word w, read as signed, is True if w <
    threshold(p) - 2**31."""
    return round(p * 2**32)


def philox(seed: torch.Tensor, counter: torch.Tensor, stream: int, draw: int) -> list[torch.Tensor]:
    """Return the four words for each counter, as int64 in [0, 2**32). The key is `seed`; `stream` and `draw` are the
    upper half of the 128-bit counter."""
    key = [seed & _MASK, (seed >> 32) & _MASK]
    words = [counter & _MASK, (counter >> 32) & _MASK]
    words += [torch.full_like(counter, stream & _MASK), torch.full_like(counter, draw)]
    for _ in range(_ROUNDS):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            ((second >> 32) & _MASK) ^ words[1] ^ key[0],
            second & _MASK,
            ((first >> 32) & _MASK) ^ words[3] ^ key[1],
            first & _MASK,
        ]
        key = [(part + weyl) & _MASK for part, weyl in zip(key, _WEYL, strict=True)]
    return words


def signed(words: torch.Tensor) -> torch.Tensor:
    """Reinterpret 32-bit words in int64 as int32."""
    return ((words ^ 0x80000000) - 0x80000000).to(torch.int32)


def bits_at(seed: torch.Tensor, stream: int, draw: int, index: torch.Tensor) -> torch.Tensor:
    """Return the 32 bits (int32) of the elements at these int64 indices."""
    words = philox(seed, (index >> 6) * LANES + (index & (LANES - 1)), stream, draw)
    which = (index >> 4) & 3
    chosen = torch.where(
        which < 2, torch.where(which == 0, words[0], words[1]), torch.where(which == 2, words[2], words[3])
    )
    return signed(chosen)


def bits(seed: torch.Tensor, stream: int, draw: int, size: Sequence[int]) -> torch.Tensor:
    """Return the 32 bits (int32) of all elements of a contiguous tensor."""
    count = 1
    for extent in size:
        count *= extent
    blocks = -(-count // BLOCK)
    counters = torch.arange(blocks * LANES, dtype=torch.int64, device=seed.device)
    words = [word.view(blocks, LANES) for word in philox(seed, counters, stream, draw)]
    return signed(torch.stack(words, 1)).view(-1)[:count].reshape(list(size))


def bits64(seed: torch.Tensor, stream: int, size: Sequence[int]) -> torch.Tensor:
    """Return 64 bits (int64) per element: those of draw 0 above those of draw 1."""
    high, low = (bits(seed, stream, draw, size).to(torch.int64) for draw in (0, 1))
    return (high << 32) | (low & _MASK)


# ---- eager references ------------------------------------------------------------------------------------------------


def _seed(device: torch.device) -> torch.Tensor:
    """Draw a 64-bit number from torch's default generator of the device."""
    return torch.ops.aten.randint.low(-(2**63), 2**63 - 1, [], dtype=torch.int64, device=device)


def _uniform(
    seed: torch.Tensor, stream: int, size: Sequence[int], dtype: torch.dtype, open: bool = False
) -> torch.Tensor:
    if open:
        return _open_uniform(seed, stream, size, dtype)
    digits = UNIFORM_BITS[dtype]
    if dtype is torch.float64:
        whole = (bits64(seed, stream, size) >> (64 - digits)) & ((1 << digits) - 1)
        return whole.to(dtype) * 2.0**-digits
    whole = (bits(seed, stream, 0, size) >> (32 - digits)) & ((1 << digits) - 1)
    return (whole.to(torch.float32) * 2.0**-digits).to(dtype)


def _open_uniform(seed: torch.Tensor, stream: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.float64:
        whole = (bits64(seed, stream, size) >> 12) & ((1 << 52) - 1)
        return (whole.to(dtype) + 0.5) * 2.0**-52
    whole = bits(seed, stream, 0, size).to(torch.int64) & _MASK
    return torch.clamp_max((whole.to(torch.float32) + 0.5) * 2.0**-32, LARGEST_OPEN)


def _normal(seed: torch.Tensor, stream: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    words = bits64(seed, stream, size) if dtype is torch.float64 else bits(seed, stream, 0, size)
    return normal_quantile(words).to(dtype)


def _bernoulli(seed: torch.Tensor, stream: int, size: Sequence[int], p: float) -> torch.Tensor:
    limit = threshold(p)
    if not 0 < limit < 2**32:
        return torch.full(list(size), limit > 0, dtype=torch.bool, device=seed.device)
    return bits(seed, stream, 0, size) < limit - 2**31


def _integers(seed: torch.Tensor, stream: int, size: Sequence[int], low: int, high: int) -> torch.Tensor:
    span = high - low
    if span <= SMALL_RANGE:
        words = bits(seed, stream, 0, size).to(torch.int64) & _MASK
        return ((words * span) >> 32) + low
    return (bits64(seed, stream, size) & (2**63 - 1)) % span + low


# ---- definitions -----------------------------------------------------------------------------------------------------

_library = torch.library.Library("stator", "DEF")
_library.define("seed(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
for _schema in (
    "uniform(Tensor seed, int stream, SymInt[] size, ScalarType dtype, bool open=False) -> Tensor",
    "normal(Tensor seed, int stream, SymInt[] size, ScalarType dtype) -> Tensor",
    "bernoulli(Tensor seed, int stream, SymInt[] size, float p) -> Tensor",
    "integers(Tensor seed, int stream, SymInt[] size, SymInt low, SymInt high) -> Tensor",
):
    _library.define(_schema)
for _name, _reference in (
    ("seed", _seed),
    ("uniform", _uniform),
    ("normal", _normal),
    ("bernoulli", _bernoulli),
    ("integers", _integers),
):
    _library.impl(_name, _reference, "CompositeExplicitAutograd")

seed = torch.ops.stator.seed.default
uniform = torch.ops.stator.uniform.default
normal = torch.ops.stator.normal.default
bernoulli = torch.ops.stator.bernoulli.default
integers = torch.ops.stator.integers.default

PURE = frozenset((uniform, normal, bernoulli, integers))
for _target in (seed, *PURE):
    record(_target).tags |= {"prim", "canonical"}


@shape_rule(seed, tags=("random", "creation"))
def seed_shape(device: Any) -> TensorMeta:
    """One int64, new in each call: the only operator here that draws from torch's generator."""
    return TensorMeta((), (), torch.int64, torch.device(device))


def _made(seed: Any, size: Sequence[Any], dtype: torch.dtype) -> TensorMeta:
    shape = tuple(size)
    return TensorMeta(shape, contiguous_strides(shape), dtype, seed.device)


@shape_rule(uniform, tags=("pointwise", "creation"))
def uniform_shape(seed: Any, stream: int, size: Sequence[Any], dtype: torch.dtype, open: bool = False) -> TensorMeta:
    """Floats of `dtype` in [0, 1), evenly spread over multiples of 2**-UNIFORM_BITS[dtype]; contiguous. `open`: in (0,
    1), for float32 and float64."""
    return _made(seed, size, dtype)


@shape_rule(normal, tags=("pointwise", "creation"))
def normal_shape(seed: Any, stream: int, size: Sequence[Any], dtype: torch.dtype) -> TensorMeta:
    """Standard normal floats of `dtype`, contiguous: the quantile of a uniform number of 32 bits (float64: of 64)."""
    return _made(seed, size, dtype)


@shape_rule(bernoulli, tags=("pointwise", "creation"))
def bernoulli_shape(seed: Any, stream: int, size: Sequence[Any], p: float) -> TensorMeta:
    """Booleans, contiguous: True with probability `p`, to within 2**-32; never for 0, always for 1."""
    return _made(seed, size, torch.bool)


@shape_rule(integers, tags=("pointwise", "creation"))
def integers_shape(seed: Any, stream: int, size: Sequence[Any], low: Any, high: Any) -> TensorMeta:
    """Integers (int64) from `low` to `high` - 1, contiguous; high - low must lie in [1, 2**63 - 1]."""
    return _made(seed, size, torch.int64)
