"""Lowerings of the `stator::` random operators: loops over random bits. ATen's own random operators stay library calls.

The numbers equal those of the eager references in prims/operators/random.py, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Index, Tensor
from stator.prims.layout import contiguous_strides
from stator.prims.operators import random
from stator.prims.record import TensorMeta
from stator.prims.type_promotion import computation_dtype

_WORD = (1 << 32) - 1
# Maps the handler and `bits(draw)`, an element's 32 random bits of a draw, to the element's value
Maker = Callable[[Any, Callable[[int], Ref]], Ref]


@lowers(random.seed)
def _seed(builder: LoweringBuilder, device: torch.device) -> Tensor:
    """The library call that the eager reference makes through Python."""
    target = torch.ops.aten.randint.low
    meta: TensorMeta = builder.meta
    named = {"dtype": torch.int64, "device": device}
    return library_results(builder, target, [-(2**63), 2**63 - 1, []], named, meta)  # type: ignore[no-any-return]


def _generated(
    builder: LoweringBuilder, seed: Tensor, stream: int, size: Sequence[int], dtype: torch.dtype, make: Maker
) -> Tensor:
    number = builder.stored_int64(stream, f"stream_{stream}_{seed.device.type}_{seed.device.index or 0}", seed.device)
    strides = contiguous_strides(tuple(size))

    def inner(ops: Any, index: Index) -> Ref:
        position: Any = 0
        for at, stride, extent in zip(index, strides, size, strict=True):
            if extent != 1:
                position = at * stride + position
        # Kernels take one seed for all elements, also inside of a padding's mask.
        key = [ops.unmasked(lambda one=one: one.load(ops, ())) for one in (seed, number)]
        return make(ops, lambda draw: ops.random(*key, draw, position))

    return builder.computed(inner, [seed, number], size, dtype, seed.device, heavy=True)


def _word64(ops: Any, bits: Callable[[int], Ref]) -> Ref:
    """An int64 with draw 0 in its upper half and draw 1 in its lower half."""
    high, low = (ops.to_dtype(bits(draw), torch.int64) for draw in (0, 1))
    shifted = ops.lshift(high, ops.constant(32, torch.int64))
    return ops.bitwise_or(shifted, ops.bitwise_and(low, ops.constant(_WORD, torch.int64)))


def _leading(ops: Any, word: Ref, digits: int) -> Ref:
    """The leading bits of a word, as an unsigned number."""
    dtype = ops.dtype(word)
    down = ops.rshift(word, ops.constant(8 * dtype.itemsize - digits, dtype))
    return ops.bitwise_and(down, ops.constant((1 << digits) - 1, dtype))


@lowers(random.uniform)
def _uniform(
    builder: LoweringBuilder, seed: Tensor, stream: int, size: Sequence[int], dtype: torch.dtype, open: bool = False
) -> Any:
    if open:
        return _open_uniform(builder, seed, stream, size, dtype)
    digits = random.UNIFORM_BITS[dtype]
    working = computation_dtype(dtype)

    def make(ops: Any, bits: Callable[[int], Ref]) -> Ref:
        word = _word64(ops, bits) if dtype is torch.float64 else bits(0)
        number = ops.to_dtype(_leading(ops, word, digits), working)
        return ops.to_dtype(ops.mul(number, ops.constant(2.0**-digits, working)), dtype)

    return _generated(builder, seed, stream, size, dtype, make)


def _open_uniform(
    builder: LoweringBuilder, seed: Tensor, stream: int, size: Sequence[int], dtype: torch.dtype
) -> Tensor:
    wide = dtype is torch.float64
    digits = 52 if wide else 32

    def make(ops: Any, bits: Callable[[int], Ref]) -> Ref:
        if wide:
            word = _leading(ops, _word64(ops, bits), digits)
        else:
            word = ops.bitwise_and(ops.to_dtype(bits(0), torch.int64), ops.constant(_WORD, torch.int64))
        number = ops.add(ops.to_dtype(word, dtype), ops.constant(0.5, dtype))
        number = ops.mul(number, ops.constant(2.0**-digits, dtype))
        return number if wide else ops.minimum(number, ops.constant(random.LARGEST_OPEN, dtype))

    return _generated(builder, seed, stream, size, dtype, make)


@lowers(random.normal)
def _normal(builder: LoweringBuilder, seed: Tensor, stream: int, size: Sequence[int], dtype: torch.dtype) -> Tensor:

    def make(ops: Any, bits: Callable[[int], Ref]) -> Ref:
        word = _word64(ops, bits) if dtype is torch.float64 else bits(0)
        return ops.to_dtype(ops.normal(word), dtype)

    return _generated(builder, seed, stream, size, dtype, make)


@lowers(random.bernoulli)
def _bernoulli(builder: LoweringBuilder, seed: Tensor, stream: int, size: Sequence[int], p: float) -> Tensor:
    limit = random.threshold(p)

    def make(ops: Any, bits: Callable[[int], Ref]) -> Ref:
        if not 0 < limit < 2**32:
            return ops.constant(limit > 0, torch.bool)
        return ops.lt(bits(0), ops.constant(limit - 2**31, torch.int32))

    return _generated(builder, seed, stream, size, torch.bool, make)


@lowers(random.integers)
def _integers(builder: LoweringBuilder, seed: Tensor, stream: int, size: Sequence[int], low: Any, high: Any) -> Tensor:
    span = high - low
    small = builder.sizes.decide("<=", span, random.SMALL_RANGE)

    def make(ops: Any, bits: Callable[[int], Ref]) -> Ref:
        def number(value: Any) -> Ref:
            return ops.constant(value, torch.int64)

        if small:
            word = ops.bitwise_and(ops.to_dtype(bits(0), torch.int64), number(_WORD))
            chosen = ops.rshift(ops.mul(word, number(span)), number(32))
        else:
            chosen = ops.mod(ops.bitwise_and(_word64(ops, bits), number(2**63 - 1)), number(span))
        return ops.add(chosen, number(low))

    return _generated(builder, seed, stream, size, torch.int64, make)
