"""Depthwise convolutions on GPUs as loops, and their gradients: sums over the few taps of a kernel, which fuse with
what follows, and by weights over all positions. The library's kernels neither fuse nor use tensor cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from stator.inductor.devices import traits_of
from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder, linear
from stator.inductor.lower.split_reductions import Split, cut_into_parts
from stator.inductor.lower.tensor import Index, Stored, Tensor
from stator.inductor.sizes import Sizes, ceil_div, product
from stator.prims.layout import channels_last_strides, contiguous_strides, same_strides
from stator.prims.record import TensorMeta
from stator.prims.type_promotion import computation_dtype
from stator.shapes.expr import Expr, Symbol, as_expr
from stator.shapes.simplify import stays_below

from .creation import within_shape
from .patches import in_format
from .reductions import reduce
from .views import permute, reshape, slice_dim

# A tap for an element: the element of the images or gradients that it reads, the condition that this one exists, the
# position in the kernel, and whether the kernel has this position for all elements
Tap = tuple[Index, Ref | None, Index, bool]
Steps = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]  # stride, padding, dilation

# Gradients by weights: the most neighbouring positions of an iteration, the channels that a program runs side by side,
# and the iterations of the shortest part
_MOST_TOGETHER, _LANES, _SHORTEST_PART = 8, 64, 8
# Kernels of more taps have a loop over their rows, which the compiler takes a sixth of the time for; their gradients by
# weights have programs for these. As many rows are one step, or one program's, as have so many taps together
_MOST_UNROLLED, _MOST_SUMS, _REPEATED = 25, 9, 8
_PARTS, _POSITIONS = (tuple(Symbol(f"{kind}{at}") for at in range(4)) for kind in "ir")
_ROW, _CHANNEL = Symbol("i4"), Symbol("i5")


def becomes_loops(x: Tensor, weight: Tensor, out: Sequence[Any], steps: Steps) -> bool:
    """True for images [N, C, ...] on a GPU that are not empty, under a small kernel for each channel. out: the shape of
    the result. docs/gpu.md says why these alone."""
    taps = weight.shape[2:]
    return (
        all(len(each) == x.rank - 2 and not any(isinstance(one, Expr) for one in each) for each in (taps, *steps))
        and x.dtype.is_floating_point
        and x.dtype is weight.dtype
        and weight.shape[:2] == (x.shape[1], 1)
        and x.sizes.known(">", x.shape[1], 1)
        and 1 < math.prod(taps) <= traits_of(x.device).depthwise_taps
        and all(x.sizes.known(">", size, 0) for size in (*x.shape, *out))
    )


def depthwise(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    steps: Steps,
    channels_last: bool,
) -> Tensor:
    """The convolution, with sums in float32."""
    kernel = weight.shape[2:]

    def taps(ops: Any, index: Index, tap: Sequence[Any]) -> Tap:
        at = _read(index, tap, steps)
        return at, within_shape(ops, at, x.shape), tuple(tap), True

    return _sums(builder, x, weight, kernel, taps, builder.meta, channels_last, bias)


def finds_taps(steps: Steps) -> bool:
    """True if the taps that read an element of the images are easy to find: the gradient by images becomes loops."""
    return all(step == 1 or gap == 1 for step, gap in zip(steps[0], steps[2], strict=True))


def depthwise_gradient(
    builder: LoweringBuilder,
    grad: Tensor,
    weight: Tensor,
    steps: Steps,
    channels_last: bool,
) -> Tensor:
    """The gradient by images. An element adds up what the positions of the result that read it got."""
    kernel = weight.shape[2:]
    counts = [-(-size // step) for size, step in zip(kernel, steps[0], strict=True)]

    def taps(ops: Any, index: Index, each: Sequence[Any]) -> Tap:
        at, tap = list(index[:2]), []
        exists: Ref | None = None
        for place, one, size, step, pad, gap in zip(index[2:], each, kernel, *steps, strict=True):
            moved = place + pad
            at.append(moved - one * gap if step == 1 else moved // step - one)
            tap.append(one if step == 1 else moved % step + one * step)
            if step > 1 and not stays_below(as_expr(tap[-1]), size, ops.ranges):
                value = ops.index_value(tap[-1], torch.int64)
                reaches = ops.lt(value, ops.constant(size, torch.int64))
                exists = reaches if exists is None else ops.bitwise_and(exists, reaches)
        inside = within_shape(ops, tuple(at), grad.shape)
        known = exists is None
        if exists is not None and inside is not None:
            exists = ops.bitwise_and(exists, inside)
        return tuple(at), inside if exists is None else exists, tuple(tap), known

    return _sums(builder, grad, weight, counts, taps, builder.meta[0], channels_last)


def depthwise_weight_gradient(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, steps: Steps, channels_last: bool
) -> Tensor:
    """The gradient by the weight. One node adds up parts of the positions, with a sum for each tap, another one the
    sums of the parts: in a fixed order. Neighbouring positions along the last axis are one iteration, since their taps
    read the same elements."""
    meta: TensorMeta = builder.meta[1]
    kernel, working = meta.shape[2:], computation_dtype(meta.dtype)
    if channels_last:
        grad, x = (in_format(builder, one, channels_last_strides(one.shape)) for one in (grad, x))
    for read in (grad, x):
        builder.realize(read.root)  # each element is read several times
    channels, width = grad.shape[1], grad.shape[-1]
    together = _positions_together(builder.sizes.hint(width))
    positions = (grad.shape[0], *grad.shape[2:-1], ceil_div(width, together))
    each = _rows_together(kernel, _MOST_SUMS)
    programs = -(-kernel[0] // each)  # that share the kernel
    part = _part(builder, grad.device, channels, positions, programs)
    split = cut_into_parts(positions, part, True, builder.sizes) or Split(0, positions[0], 1, True)
    counts = split.counts(positions)
    inside = math.prod(kernel[1:])
    shape = (*counts, programs * each * inside, channels)
    sums = builder.new_buffer(shape, contiguous_strides(shape), working, meta.device)
    memory: Stored = sums.source  # type: ignore[assignment]
    parts, at = _PARTS[: len(counts)], _POSITIONS[: len(positions)]
    where = (*parts[:-1], split.piece * parts[-1] + at[split.at], *at[split.at + 1 :])
    places = [(where[0], _CHANNEL, *where[1:-1], where[-1] * together + one) for one in range(together)]

    def body(ops: Any) -> None:
        def element(tensor: Tensor, index: Index) -> Ref:
            return ops.to_dtype(_element(ops, tensor, index, within_shape(ops, index, tensor.shape)), working)  # type: ignore[no-any-return]

        given = [element(grad, index) for index in places]
        rows = [_ROW * each + one for one in range(each)]
        read: dict[Index, Ref] = {}
        for at, tap in enumerate(itertools.product(rows, *map(range, kernel[1:]))):
            total: Ref | None = None
            for value, index in zip(given, places, strict=True):
                source = _read(index, tap, steps)
                if source not in read:
                    read[source] = element(x, source)
                factors = value, read[source]
                total = ops.mul(*factors) if total is None else ops.fma(*factors, total)
            found = ops.reduce("sum", total)
            ops.store(memory.buffer, linear(memory, (*parts, _ROW * each * inside + at, _CHANNEL)), found)

    loops, ranges = (*parts, _ROW, _CHANNEL), (*counts, programs, channels)
    reduced_ranges = (split.piece, *positions[split.at + 1 :])
    frozen = builder.freeze(body, loops, ranges, at[split.at :], reduced_ranges)
    builder.emit((memory.buffer,), frozen, grad.work | x.work)
    total = reshape(reduce(builder, "sum", sums, range(len(counts)), meta.dtype), (shape[-2], channels))
    return reshape(permute(slice_dim(total, 0, 0, math.prod(kernel)), (1, 0)), meta.shape)


def _positions_together(width: int) -> int:
    """Positions of an iteration: as many as divide the width, if these are not too few."""
    most = min(width, _MOST_TOGETHER)
    return next((many for many in range(most, most // 2, -1) if width % many == 0), most)


def _part(builder: LoweringBuilder, device: torch.device, channels: Any, positions: Sizes, shared: int) -> int:
    """Iterations for each program, so that the device runs all programs at once: what each exchanges at its end takes
    time, too."""
    rows = builder.sizes.hint(product(positions))
    programs = -(-builder.sizes.hint(channels) // _LANES) * shared
    parts = min(traits_of(device).programs // 4 // programs, rows // _SHORTEST_PART)
    return -(-rows // max(parts, 1))


def _read(index: Index, tap: Sequence[Any], steps: Steps) -> Index:
    """The element of the images that a position of the result reads for a tap."""
    each = zip(index[2:], tap, *steps, strict=True)
    return (*index[:2], *(place * step + (one * gap - pad) for place, one, step, pad, gap in each))


def _rows_together(kernel: Sequence[int], most: int) -> int:
    """The rows of a kernel that an iteration, or a program, runs through at once: all of them, for `most` taps."""
    return kernel[0] if math.prod(kernel) <= most else min(max(_REPEATED // math.prod(kernel[1:]), 1), kernel[0])


def _sums(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor,
    counts: Sequence[int],
    tap_of: Callable[[Any, Index, Sequence[Any]], Tap],
    meta: TensorMeta,
    channels_last: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """Sums over taps of elements times weights. channels_last: the format of x and of the result, else eager's."""
    if channels_last:
        x = in_format(builder, x, channels_last_strides(x.shape))
        weight = in_format(builder, weight, _channels_innermost(weight.shape))
    for read in (x, weight):
        builder.realize(read.root)  # each element is read several times
    working = computation_dtype(x.dtype)

    def add_up(ops: Any, index: Index, taps: Iterable[Sequence[Any]], total: Ref | None) -> Ref | None:
        for each in taps:
            at, exists, tap, known = tap_of(ops, index, each)
            value = _element(ops, x, at, exists)
            factor = _element(ops, weight, (index[1], 0, *tap), None if known else exists)
            value, factor = ops.to_dtype(value, working), ops.to_dtype(factor, working)
            total = ops.mul(value, factor) if total is None else ops.fma(value, factor, total)
        return total

    def inner(ops: Any, index: Index) -> Ref:
        first = None if bias is None else ops.to_dtype(bias.load(ops, index[1:2]), working)
        together = _rows_together(counts, _MOST_UNROLLED)
        repeated = counts[0] - counts[0] % together  # rows
        if repeated == together:
            total = add_up(ops, index, itertools.product(*map(range, counts)), first)
        else:
            step = ops.step(repeated // together)
            row = ops.indirect(step, repeated // together, check=False, wraps=False) * together
            inside = [*map(range, counts[1:])]
            total = ops.total(
                step, add_up(ops, index, itertools.product([row + one for one in range(together)], *inside), None)
            )
            total = total if first is None else ops.add(first, total)
            total = add_up(ops, index, itertools.product(range(repeated, counts[0]), *inside), total)
        return ops.to_dtype(total, meta.dtype)  # type: ignore[no-any-return]

    operands = [x, weight] if bias is None else [x, weight, bias]
    result = builder.computed(inner, operands, meta.shape, meta.dtype, meta.device, heavy=True)
    result.strides = channels_last_strides(meta.shape) if channels_last else meta.stride
    result.deviates = not same_strides(meta.shape, result.strides, meta.stride)
    return result


def _element(ops: Any, tensor: Tensor, at: Index, exists: Ref | None) -> Ref:
    if exists is None:
        return tensor.load(ops, at)
    return ops.masked(exists, partial(tensor.load, ops, at), 0, tensor.dtype)  # type: ignore[no-any-return]


def _channels_innermost(shape: Sequence[Any]) -> Sizes:
    """Strides of a kernel [C, 1, ...] with the channels of a tap side by side."""
    strides: list[Any] = [1, shape[0]]
    running = shape[0]
    for size in reversed(shape[2:]):
        strides.insert(2, running)
        running *= size
    return tuple(strides)
