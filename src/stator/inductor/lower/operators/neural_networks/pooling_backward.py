"""Lowerings of the gradients of pooling: every input element adds up the gradients of the windows that cover it.

The loops read windows instead of scattering writes. They therefore fuse, and need no zeros before and no atomics.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder, dense_like
from stator.inductor.lower.heuristics import MAX_UNROLLED_WINDOW
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Index, Strides, Tensor
from stator.prims.layout import same_strides
from stator.prims.operators.pooling_places import max_pool_places_backward, place_step, windows_around
from stator.prims.type_promotion import computation_dtype, is_integral

from ..creation import within_shape
from .pooling import Windows, window_divisor

aten = torch.ops.aten


def _covering(windows: Windows) -> list[tuple[int, int]]:
    """The distances, along both dimensions, from the last window that covers an element to the other such windows."""
    counts = windows_around(windows.sizes, windows.steps, windows.gaps)
    return list(itertools.product(range(counts[0]), range(counts[1])))


def _contributions(
    builder: LoweringBuilder, grad: Tensor, windows: Windows
) -> Callable[[Any, Index], Iterator[tuple[Index, Ref | None]]]:
    """The windows that may cover an element: their index in the result, and the condition that they exist."""
    if grad.root.resolved() is None:
        builder.realize(grad.root)  # it is read once per window

    def places(ops: Any, index: Index) -> Iterator[tuple[Index, Ref | None]]:
        last = [(index[axis - 2] + windows.pads[axis]) // windows.steps[axis] for axis in (0, 1)]
        for rows, columns in _covering(windows):
            at = (*index[:-2], last[0] - rows, last[1] - columns)
            yield at, within_shape(ops, at, grad.shape)

    return places


def _strides(builder: LoweringBuilder, operands: Sequence[Tensor]) -> Strides:
    """The strides of the result: in the format of an operand that lowering has laid out, else eager's."""
    laid_out = next((operand for operand in operands if operand.deviates), None)
    meta = builder.meta
    return meta.stride if laid_out is None else dense_like(meta.shape, builder.sizes.hints(laid_out.strides))  # type: ignore[no-any-return]


def _along_rows(builder: LoweringBuilder, operands: Sequence[Tensor]) -> bool:
    """True if the elements of a row are contiguous, so that vectors of a CPU go along the rows."""
    meta = builder.meta
    on_cpu = meta.device.type == "cpu"
    return on_cpu and _strides(builder, operands)[-1] == 1 and builder.sizes.hint(meta.shape[-1]) > 1


def _where(ops: Any, condition: Ref | None, value: Callable[[], Ref], other: float, dtype: torch.dtype) -> Ref:
    return value() if condition is None else ops.masked(condition, value, other, dtype)


def _result(builder: LoweringBuilder, inner: Callable[[Any, Index], Ref], operands: Sequence[Tensor]) -> Tensor:
    meta = builder.meta
    result = builder.computed(inner, operands, meta.shape, meta.dtype, meta.device, heavy=True)
    result.strides = _strides(builder, operands)
    result.deviates = not same_strides(meta.shape, result.strides, meta.stride)
    return result


@lowers(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(builder: LoweringBuilder, grad: Tensor, x: Tensor, *geometry_and_places: Any) -> Any:
    *geometry, _ceil_mode, places = geometry_and_places
    windows = Windows.of(*geometry)
    if len(_covering(windows)) > MAX_UNROLLED_WINDOW or is_integral(grad.dtype) or grad.numel == 0:
        return NotImplemented
    if _along_rows(builder, [grad, places]):  # comparing vectors of 64-bit positions is slower than the library
        return NotImplemented
    width = x.shape[-1]
    return _gradient_of_places(builder, grad, places, windows, lambda index, at: index[-2] * width + index[-1])


@lowers(max_pool_places_backward)
def _max_pool_places_backward(builder: LoweringBuilder, grad: Tensor, x: Tensor, *geometry_and_places: Any) -> Any:
    if grad.numel == 0:
        return NotImplemented
    *geometry, _ceil_mode, places = geometry_and_places
    windows = Windows.of(*geometry)
    distance = place_step(windows.sizes, windows.steps, windows.gaps)

    def place(index: Index, at: Index) -> Any:
        row, column = [index[axis - 2] - first for axis, first in enumerate(windows.element(at, 0, 0)[-2:])]
        return row * distance + column

    return _gradient_of_places(builder, grad, places, windows, place)


def _gradient_of_places(
    builder: LoweringBuilder, grad: Tensor, places: Tensor, windows: Windows, place: Callable[[Index, Index], Any]
) -> Tensor:
    """The sum of the gradients of windows whose place of the largest element is `place(an element, a window)`."""
    working = computation_dtype(grad.dtype)
    if places.root.resolved() is None:
        builder.realize(places.root)
    covering = _contributions(builder, grad, windows)

    def inner(ops: Any, index: Index) -> Ref:
        total: Ref | None = None
        for at, exists in covering(ops, index):
            if windows.gaps == (1, 1):  # a place that cannot be the element's need not be read
                exists = _and(ops, exists, _reaches(ops, index, at, windows))
            own = ops.index_value(place(index, at), places.dtype)
            chosen = ops.eq(_where(ops, exists, partial(places.load, ops, at), -1, places.dtype), own)
            value = ops.to_dtype(_where(ops, exists, partial(grad.load, ops, at), 0, grad.dtype), working)
            part = ops.where(chosen, value, ops.constant(0, working))
            total = part if total is None else ops.add(total, part)
        return ops.to_dtype(total, grad.dtype)

    return _result(builder, inner, [grad, places])


@lowers(aten.avg_pool2d_backward.default)
def _avg_pool_backward(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, *rest: Any
) -> Any:
    windows = Windows.of(kernel, stride, padding)
    if len(_covering(windows)) > MAX_UNROLLED_WINDOW or is_integral(grad.dtype) or grad.numel == 0:
        return NotImplemented
    if _along_rows(builder, [grad]) and windows.steps[1] not in (1, 2):  # other steps need a division per element
        return NotImplemented
    working = computation_dtype(grad.dtype)
    divisor = window_divisor(x, grad.shape[-2:], windows, working, *rest)
    covering = _contributions(builder, grad, windows)

    def share(ops: Any, at: Index) -> Ref:
        return ops.div(ops.to_dtype(grad.load(ops, at), working), divisor(ops, at))

    def inner(ops: Any, index: Index) -> Ref:
        total: Ref = ops.constant(0, working)
        for at, exists in covering(ops, index):
            covered = _and(ops, exists, _reaches(ops, index, at, windows))
            total = ops.add(total, _where(ops, covered, partial(share, ops, at), 0, working))
        return ops.to_dtype(total, grad.dtype)

    return _result(builder, inner, [grad])


def _and(ops: Any, first: Ref | None, second: Ref | None) -> Ref | None:
    if first is None or second is None:
        return second if first is None else first
    return ops.bitwise_and(first, second)


def _reaches(ops: Any, index: Index, at: Index, windows: Windows) -> Ref | None:
    """The condition that the window at `at` reaches the element at `index`; None where it always does."""
    condition: Ref | None = None
    for axis, size in enumerate(windows.sizes):
        if size % windows.steps[axis]:
            distance = index[axis - 2] + windows.pads[axis] - at[axis - 2] * windows.steps[axis]
            value = ops.index_value(distance, torch.int64)
            condition = _and(ops, condition, ops.lt(value, ops.constant(size, torch.int64)))
    return condition


@lowers(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool_backward(builder: LoweringBuilder, grad: Tensor, x: Tensor) -> Any:
    plane, size = x.shape[-2:], grad.shape[-2:]
    if is_integral(grad.dtype) or 0 in (*x.shape, *grad.shape):
        return NotImplemented
    if not (x.sizes.divides(size[0], plane[0]) and x.sizes.divides(size[1], plane[1])):
        return NotImplemented
    window = x.sizes.simplify(plane[0] // size[0]), x.sizes.simplify(plane[1] // size[1])
    working = computation_dtype(grad.dtype)

    def inner(ops: Any, index: Index) -> Ref:
        at = tuple(
            0 if count == 1 else place // width for place, count, width in zip(index[-2:], size, window, strict=True)
        )
        value = ops.to_dtype(grad.load(ops, (*index[:-2], *at)), working)
        return ops.to_dtype(ops.div(value, ops.constant(math.prod(window), working)), grad.dtype)

    return _result(builder, inner, [grad])
