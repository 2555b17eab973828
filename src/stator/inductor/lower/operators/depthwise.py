"""Depthwise convolutions on GPUs as loops, and their gradients by images: sums over the few taps of a kernel. They fuse
with what follows; the library's kernels neither do that nor use tensor cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from stator.inductor.devices import traits_of
from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.tensor import Index, Tensor
from stator.inductor.sizes import Sizes
from stator.prims.layout import channels_last_strides, same_strides
from stator.prims.record import TensorMeta
from stator.prims.type_promotion import computation_dtype
from stator.shapes.expr import Expr

from .creation import within_shape
from .patches import in_format

# A tap for an element: the element of the images or gradients that it reads, the condition that this one exists, and
# the position in the kernel
Tap = tuple[Index, Ref | None, Index]
Steps = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]  # stride, padding, dilation


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

    def taps(ops: Any, index: Index) -> Iterator[Tap]:
        for tap in itertools.product(*map(range, kernel)):
            each = zip(index[2:], tap, *steps, strict=True)
            at = (*index[:2], *(place * step + (one * gap - pad) for place, one, step, pad, gap in each))
            yield at, within_shape(ops, at, x.shape), tap

    return _sums(builder, x, weight, taps, builder.meta, channels_last, bias)


def gradient_becomes_loops(x: Tensor, weight: Tensor, out: Sequence[Any], steps: Steps) -> bool:
    """True if the gradient by images of such a convolution becomes loops: if taps for an element are easy to find."""
    found = becomes_loops(x, weight, out, steps)
    return found and all(step == 1 or gap == 1 for step, gap in zip(steps[0], steps[2], strict=True))


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

    def taps(ops: Any, index: Index) -> Iterator[Tap]:
        for each in itertools.product(*map(range, counts)):
            at, tap = list(index[:2]), []
            exists: Ref | None = None
            for place, one, size, step, pad, gap in zip(index[2:], each, kernel, *steps, strict=True):
                moved = place + pad
                at.append(moved - one * gap if step == 1 else moved // step - one)
                tap.append(one if step == 1 else moved % step + one * step)
                if step > 1 and (one + 1) * step > size:
                    value = ops.index_value(tap[-1], torch.int64)
                    reaches = ops.lt(value, ops.constant(size, torch.int64))
                    exists = reaches if exists is None else ops.bitwise_and(exists, reaches)
            inside = within_shape(ops, tuple(at), grad.shape)
            if exists is not None and inside is not None:
                exists = ops.bitwise_and(exists, inside)
            yield tuple(at), inside if exists is None else exists, tuple(tap)

    return _sums(builder, grad, weight, taps, builder.meta[0], channels_last)


def _sums(
    builder: LoweringBuilder,
    x: Tensor,
    weight: Tensor,
    taps: Callable[[Any, Index], Iterator[Tap]],
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

    def inner(ops: Any, index: Index) -> Ref:
        total = None if bias is None else ops.to_dtype(bias.load(ops, index[1:2]), working)
        for at, exists, tap in taps(ops, index):
            value = _element(ops, x, at, exists)
            known = all(isinstance(one, int) for one in tap)
            factor = _element(ops, weight, (index[1], 0, *tap), None if known else exists)
            value, factor = ops.to_dtype(value, working), ops.to_dtype(factor, working)
            total = ops.mul(value, factor) if total is None else ops.fma(value, factor, total)
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
