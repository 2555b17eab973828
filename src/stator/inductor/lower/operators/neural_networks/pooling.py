"""Lowerings of pooling and of nearest-neighbour upsampling: a small window becomes one unrolled expression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder, dense_like
from stator.inductor.lower.heuristics import MAX_UNROLLED_WINDOW
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Index, Tensor
from stator.inductor.sizes import product
from stator.prims.operators.pooling_places import max_pool_places, place_step
from stator.prims.type_promotion import computation_dtype, is_integral
from stator.shapes.expr import Expr

from ..creation import within_shape
from ..pointwise import cast
from ..reductions import has_elements, reduce
from ..views import reshape

aten = torch.ops.aten


def _pair(value: Sequence[int] | int) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a pooling: their sizes along rows and columns, the steps from one to the next, the padding of the
    image, and the distances between the elements of a window."""

    sizes: tuple[int, int]
    steps: tuple[int, int]
    pads: tuple[int, int]
    gaps: tuple[int, int] = (1, 1)

    @staticmethod
    def of(kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
        return Windows(_pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation))

    @property
    def are_known(self) -> bool:
        return not any(isinstance(one, Expr) for one in (*self.sizes, *self.steps, *self.pads, *self.gaps))

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def element(self, index: Index, row: int, column: int) -> Index:
        """The place in the image of an element of the window at `index`."""
        at = [
            index[-2 + axis] * self.steps[axis] + (shift - self.pads[axis]) for axis, shift in enumerate((row, column))
        ]
        return (*index[:-2], *at)

    def places(self) -> Iterator[tuple[int, int]]:
        """The distances, along rows and columns, of a window's elements from its first."""
        for row, column in itertools.product(range(self.sizes[0]), range(self.sizes[1])):
            yield row * self.gaps[0], column * self.gaps[1]


def _windowed(builder: LoweringBuilder, x: Tensor, size: Sequence[Any], combine: Any, dtype: torch.dtype) -> Tensor:
    """A tensor of spatial `size` that `combine(ops, index)` computes from windows of x, in x's memory format."""
    x_root = x.root
    if x_root.resolved() is None:
        builder.realize(x_root)  # windows overlap, so every element is read several times
    shape = (*x.shape[:-2], *size)
    result = builder.computed(combine, [x], shape, dtype, x.device, heavy=True)
    result.strides, result.deviates = dense_like(shape, x.sizes.hints(x.strides)), x.deviates
    return result


@lowers(aten.max_pool2d_with_indices.default)
def _max_pool(
    builder: LoweringBuilder,
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    *_ceil: bool,
) -> Any:
    windows = Windows.of(kernel, stride, padding, dilation)
    indices_used = any(user.args[1] == 1 for user in builder.node.users)
    if not windows.are_known:
        return NotImplemented
    large = windows.elements > MAX_UNROLLED_WINDOW
    if is_integral(x.dtype) or max(windows.sizes) > MAX_UNROLLED_WINDOW or (large and indices_used):
        return NotImplemented
    if indices_used:
        spread = any(pad and gap > 1 for pad, gap in zip(windows.pads, windows.gaps, strict=True))
        return NotImplemented if spread else _max_pool_with_positions(builder, x, windows)
    size = builder.meta[0].shape[-2:]
    if not large:
        return [_largest(builder, x, size, windows), None]
    # along rows, then along columns: far fewer elements are compared
    (height, width), (down, right), (top, left), (below, beside) = astuple(windows)
    rows = _largest(builder, x, (x.shape[-2], size[1]), Windows((1, width), (1, right), (0, left), (1, beside)))
    return [_largest(builder, rows, size, Windows((height, 1), (down, 1), (top, 0), (below, 1))), None]


@lowers(max_pool_places)
def _max_pool_places(builder: LoweringBuilder, x: Tensor, *geometry: Any) -> Any:
    windows = Windows.of(*geometry[:4])
    row = place_step(windows.sizes, windows.steps, windows.gaps)
    return _max_pool_with_positions(builder, x, windows, (row, torch.int8))


def _largest(builder: LoweringBuilder, x: Tensor, size: Sequence[Any], windows: Windows) -> Tensor:
    """The largest element of each window."""
    working = computation_dtype(x.dtype)

    def combine(ops: Any, index: Index) -> Ref:
        largest: Ref | None = None
        for place in windows.places():
            value = ops.to_dtype(_load_or(ops, x, windows.element(index, *place), -math.inf), working)
            largest = value if largest is None else ops.maximum(largest, value)
        return ops.to_dtype(largest, x.dtype)

    return _windowed(builder, x, size, combine, x.dtype)


def _max_pool_with_positions(
    builder: LoweringBuilder, x: Tensor, windows: Windows, in_window: tuple[int, torch.dtype] | None = None
) -> list[Tensor]:
    """The largest element of each window and its position in its image, in one pass. in_window: its place in the window
    instead, by the distance of rows and the dtype.

    As in eager, a later element wins if it is larger or a NaN, and windows of nothing but -inf give the first position.
    """
    working = computation_dtype(x.dtype)
    distance, dtype = in_window or (x.shape[-1], torch.int64)

    def winner(ops: Any, index: Index) -> tuple[Ref, Ref]:
        key = ("winner", id(x), index)
        if key in ops.memo:
            return ops.memo[key]  # type: ignore[no-any-return]
        zero = ops.constant(0, torch.int32)
        start = windows.element(index, 0, 0)
        # an image begins inside of its first windows: distances from its start, or from the window's
        firsts = [-at for at in start[-2:]] if in_window else start[-2:]
        row, column = (ops.maximum(ops.index_value(at, torch.int32), zero) for at in firsts)
        position = ops.add(ops.mul(row, ops.constant(distance, torch.int32)), column)
        largest = ops.constant(-math.inf, working)
        for row_in_window, column_in_window in windows.places():
            at = windows.element(index, row_in_window, column_in_window)
            value = ops.to_dtype(_load_or(ops, x, at, -math.inf), working)
            wins = ops.bitwise_or(ops.gt(value, largest), ops.isnan(value))
            largest = ops.where(wins, value, largest)
            if in_window:
                here = ops.constant(row_in_window * distance + column_in_window, torch.int32)
            else:
                here = ops.index_value(at[-2] * distance + at[-1], torch.int32)
            position = ops.where(wins, here, position)
        ops.memo[key] = largest, position
        return largest, position

    size = builder.meta[0].shape[-2:]
    values = _windowed(builder, x, size, lambda ops, index: ops.to_dtype(winner(ops, index)[0], x.dtype), x.dtype)
    positions = _windowed(builder, x, size, lambda ops, index: ops.to_dtype(winner(ops, index)[1], dtype), dtype)
    builder.store_together([values, positions])
    return [values, positions]


def _load_or(ops: Any, x: Tensor, at: Index, other: float) -> Ref:
    mask = within_shape(ops, at, x.shape)
    if mask is None:
        return x.load(ops, at)
    return ops.masked(mask, lambda: x.load(ops, at), other, x.dtype)


@lowers(aten.avg_pool2d.default)
def _avg_pool(
    builder: LoweringBuilder, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, *rest: Any
) -> Any:
    windows = Windows.of(kernel, stride, padding)
    if not windows.are_known or windows.elements > MAX_UNROLLED_WINDOW or is_integral(x.dtype):
        return NotImplemented
    size = builder.meta.shape[-2:]
    working = computation_dtype(x.dtype)
    divisor = window_divisor(x, size, windows, working, *rest)

    def combine(ops: Any, index: Index) -> Ref:
        total: Ref | None = None
        for place in windows.places():
            value = ops.to_dtype(_load_or(ops, x, windows.element(index, *place), 0), working)
            total = value if total is None else ops.add(total, value)
        return ops.to_dtype(ops.div(total, divisor(ops, index)), x.dtype)

    return _windowed(builder, x, size, combine, x.dtype)


def window_divisor(
    x: Tensor,
    size: Sequence[Any],
    windows: Windows,
    working: torch.dtype,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Callable[[Any, Index], Ref]:
    """The divisor of the average at an index of the result (of spatial `size`), as a function `divisor(ops, index)`."""
    # True where windows reach beyond the input (and, with ceil_mode, beyond its padding)
    plane, steps, pads = x.shape[-2:], windows.steps, windows.pads
    overhang = [
        not x.sizes.known("<=", (out - 1) * step - pad + width, length)
        for out, step, pad, width, length in zip(size, steps, pads, windows.sizes, plane, strict=True)
    ]
    whole = not any(overhang) and not any(pads)

    def divisor(ops: Any, index: Index) -> Ref:
        if divisor_override is not None or whole:
            return ops.constant(divisor_override or windows.elements, working)
        count: Ref | None = None
        for axis in (0, 1):
            length = plane[axis]
            margin = pads[axis] if count_include_pad else 0
            start = index[-2 + axis] * steps[axis] - pads[axis]
            covered = _covered(ops, start, windows.sizes[axis], -margin, length + margin)
            count = covered if count is None else ops.mul(count, covered)
        return ops.to_dtype(count, working)

    return divisor


def _covered(ops: Any, start: Any, width: int, low: Any, high: Any) -> Ref:
    """The number of positions in [low, high), of `width` positions from `start`."""
    first = ops.index_value(start, torch.int64)
    begin = ops.maximum(first, ops.constant(low, torch.int64))
    end = ops.minimum(ops.add(first, ops.constant(width, torch.int64)), ops.constant(high, torch.int64))
    return ops.sub(end, begin)


@lowers(aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default)
def _adaptive_avg_pool(builder: LoweringBuilder, x: Tensor, size: Sequence[Any]) -> Any:
    height, width = x.shape[-2:]
    if is_integral(x.dtype) or 0 in size or not has_elements(x):
        return NotImplemented
    if tuple(size) == (1, 1):
        count = height * width
        return reduce(
            builder,
            "sum",
            x,
            (x.rank - 2, x.rank - 1),
            x.dtype,
            epilogue=lambda ops, total: ops.div(total, ops.constant(count, ops.dtype(total))),
        )
    if not (x.sizes.divides(size[0], height) and x.sizes.divides(size[1], width)):
        return NotImplemented
    kernel = (height // size[0], width // size[1])
    if x.sizes.hint(product(kernel)) <= MAX_UNROLLED_WINDOW:
        return _avg_pool(builder, x, kernel, kernel)
    windows = reshape(x, (*x.shape[:-2], size[0], kernel[0], size[1], kernel[1]))
    return reduce(
        builder,
        "sum",
        windows,
        (windows.rank - 3, windows.rank - 1),
        x.dtype,
        epilogue=lambda ops, total: ops.div(total, ops.constant(product(kernel), ops.dtype(total))),
        keepdim=False,
    )


@lowers(aten.upsample_nearest2d.default)
def _upsample_nearest(
    builder: LoweringBuilder, x: Tensor, size: Sequence[Any], scale_h: float | None = None, scale_w: float | None = None
) -> Any:
    height, width = x.shape[-2:]
    if not (x.sizes.divides(height, size[0]) and x.sizes.divides(width, size[1])):
        return NotImplemented
    factors = x.sizes.simplify(size[0] // height), x.sizes.simplify(size[1] // width)
    if any(scale is not None and scale != factor for scale, factor in zip((scale_h, scale_w), factors, strict=True)):
        return NotImplemented

    def inner(ops: Any, index: Index) -> Ref:
        return x.load(ops, (*index[:-2], index[-2] // factors[0], index[-1] // factors[1]))

    return _windowed(builder, x, size, inner, x.dtype)


@lowers(aten.native_dropout.default)
def _native_dropout(builder: LoweringBuilder, x: Tensor, probability: float, train: bool | None) -> Any:
    if train:
        return NotImplemented
    mask = builder.pointwise(lambda ops, value: ops.constant(True, torch.bool), [x], torch.bool)
    return [cast(builder, x, builder.meta[0].dtype), mask]
