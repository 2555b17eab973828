"""Gradients of operators that read each result from one input element: each element sums the gradients of its readers.

Embeddings, overlapping or selecting views, padding from inside, interpolation. All are one accumulating `index_put`
into zeros, with the forward's index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import decomposes, iota
from stator.prims.layout import surely, wrap_dim

from .resampling import (
    keeps_size,
    linear_places,
    nearest_places,
    reflected,
    replicated,
    scale_of,
    scales_of,
    unless_equal,
    unless_repeated,
)

aten = torch.ops.aten


def gathered(shape: Sequence[Any], indices: Sequence[Any], values: Any) -> Any:
    """Return zeros of `shape` with the values added at the indices."""
    zeros = aten.full.default(list(shape), 0, dtype=values.dtype, device=values.device)
    return aten.index_put.default(zeros, list(indices), values, True)


@decomposes("embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Any, indices: Any, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> Any:
    """Rows at `padding_idx` get nothing; by frequency, a row gets the mean of its readers' gradients."""
    if 0 in tuple(grad_output.shape):
        return NotImplemented
    grad = grad_output
    if scale_grad_by_freq:
        ones = aten.full.default(list(indices.shape), 1, dtype=grad.dtype, device=grad.device)
        counts = aten.index.Tensor(gathered([num_weights], [indices], ones), [indices])
        grad = aten.div.Tensor(grad, aten.unsqueeze.default(counts, -1))
    if padding_idx >= 0:
        padding = aten.unsqueeze.default(aten.eq.Scalar(indices, padding_idx), -1)
        grad = aten.where.ScalarSelf(padding, 0.0, grad)
    return gathered([num_weights, grad.shape[-1]], [indices], grad)


@decomposes("unfold_backward")
def unfold_backward(grad_in: Any, input_sizes: Sequence[Any], dim: int, size: Any, step: Any) -> Any:
    rank = len(input_sizes)
    if not rank or 0 in tuple(grad_in.shape):
        return NotImplemented
    dim = wrap_dim(dim, rank)
    starts = aten.unsqueeze.default(aten.mul.Tensor(iota(grad_in.shape[dim], grad_in), step), 1)
    places = aten.add.Tensor(starts, iota(size, grad_in))
    order = [*range(dim + 1), rank, *range(dim + 1, rank)]
    return gathered(input_sizes, [None] * dim + [places], aten.permute.default(grad_in, order))


@decomposes("diagonal_backward")
def diagonal_backward(grad_output: Any, input_sizes: Sequence[Any], offset: Any, dim1: int, dim2: int) -> Any:
    zeros = aten.full.default(list(input_sizes), 0, dtype=grad_output.dtype, device=grad_output.device)
    return aten.diagonal_scatter.default(zeros, grad_output, offset, dim1, dim2)


# ---- padding


def across(places: Sequence[Any]) -> list[Any]:
    """Shape the index vectors of the last dimensions to broadcast against each other."""
    rank = len(places)
    return [aten.view.default(place, [1] * axis + [-1] + [1] * (rank - 1 - axis)) for axis, place in enumerate(places)]


def padded_places(sizes: Sequence[Any], padding: Sequence[Any], like: Any) -> list[Any]:
    """Return, for each padded dimension, outermost first, the offset of each result position before the first
    element."""
    rank = len(padding) // 2
    found = []
    for axis in range(rank):
        before, after = padding[2 * (rank - 1 - axis)], padding[2 * (rank - 1 - axis) + 1]
        found.append(aten.add.Tensor(iota(sizes[axis - rank] + before + after, like), -before))
    return found


def _pad_backward(names: str, move: Any) -> None:
    @decomposes(names)
    def pad_backward(grad_output: Any, self: Any, padding: Sequence[Any]) -> Any:
        if 0 in tuple(self.shape) or 0 in tuple(grad_output.shape):
            return NotImplemented
        sizes = tuple(self.shape)
        rank = len(padding) // 2
        places = padded_places(sizes, padding, self)
        moved = [move(place, sizes[axis - rank]) for axis, place in enumerate(places)]
        return gathered(sizes, [*[None] * (len(sizes) - rank), *across(moved)], grad_output)


_pad_backward("reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward", reflected)
_pad_backward("replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward", replicated)


# ---- interpolation


def _nearest_backward(names: str, shift: float) -> None:
    @decomposes(names)
    def nearest_backward(
        grad_output: Any, output_size: Sequence[Any], input_size: Sequence[Any], *scales: Any, **named: Any
    ) -> Any:
        if 0 in tuple(grad_output.shape) or 0 in tuple(input_size):
            return NotImplemented
        given = scales_of(output_size, scales, named)
        sizes = list(input_size)[2:]
        given = unless_repeated(sizes, output_size, given, shift, grad_output)
        factors = _whole_factors(output_size, sizes, given)
        if factors is not None:
            return _summed_blocks(grad_output, sizes, factors)
        places = nearest_places(sizes, output_size, given, shift, grad_output)
        return gathered(input_size, [None, None, *places], grad_output)


_nearest_backward("upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward", 0.0)
_nearest_backward(
    "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward", 0.5
)


def _whole_factors(
    output_size: Sequence[Any], sizes: Sequence[Any], scales: Sequence[float | None]
) -> list[Any] | None:
    """Return how many result positions read each element; None unless every element has equally many."""
    factors = []
    for target, size, scale in zip(output_size, sizes, scales, strict=True):
        if not surely(target % size == 0) or (scale is not None and scale != target // size):
            return None
        factors.append(target // size)
    return factors


def _summed_blocks(grad: Any, sizes: Sequence[Any], factors: Sequence[Any]) -> Any:
    split = list(grad.shape)[:2]
    for size, factor in zip(sizes, factors, strict=True):
        split += [size, factor]
    inner = [3 + 2 * axis for axis, factor in enumerate(factors) if factor != 1]
    blocks = aten.reshape.default(grad, split)
    result = aten.sum.dim_IntList(blocks, inner) if inner else blocks
    return aten.reshape.default(result, [*list(grad.shape)[:2], *sizes])


@decomposes("upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward")
def upsample_linear_backward(
    grad_output: Any,
    output_size: Sequence[Any],
    input_size: Sequence[Any],
    align_corners: bool,
    *scales: Any,
    **named: Any,
) -> Any:
    """Each of two neighbours along a dimension gets its weight; dimension by dimension. An element with few readers
    sums what it gets from them."""
    if 0 in tuple(grad_output.shape) or 0 in tuple(input_size):
        return NotImplemented
    given = scales_of(output_size, scales, named)
    rank = len(output_size)
    result = grad_output
    for axis in range(rank):
        size, target = input_size[axis + 2], output_size[axis]
        if keeps_size(size, target, given[axis]):
            continue
        may_be_equal = type(size) is not int or type(target) is not int
        low, high, weight = linear_places(size, target, align_corners, given[axis], result)
        most = _most_readers(size, target, align_corners, given[axis])
        if 0 < most <= _MOST_READERS:
            result = _summed_readers(result, axis + 2, size, most, (low, high, weight))
            continue
        weight = aten.view.default(weight, [-1, *[1] * (rank - 1 - axis)])
        shape = [*result.shape[: axis + 2], size, *result.shape[axis + 3 :]]
        before: list[Any] = [None] * (axis + 2)
        lower = gathered(shape, [*before, low], aten.mul.Tensor(result, aten.rsub.Scalar(weight, 1.0)))
        share = aten.mul.Tensor(result, weight)
        share = unless_equal(size, target, share) if may_be_equal else share
        result = aten.index_put.default(lower, [*before, high], share, True)
    return result if result is not grad_output else aten.clone.default(grad_output)


_MOST_READERS = 8
_ROUNDING = 1 / 64  # of a position along a dimension of less than 2**16 elements in float32, at most


def _most_readers(size: Any, target: Any, align_corners: bool, scale: Any) -> int:
    """Return the number of result positions that read one element, at most; 0 for symbols and for dimensions too long
    to tell."""
    if type(size) is not int or type(target) is not int or isinstance(scale, torch.SymFloat):
        return 0
    if max(size, target) >= 1 << 16:
        return 0
    step = (size - 1) / (target - 1) if align_corners and target > 1 else scale_of(scale, size, target)
    counts = [0] * size
    for number in range(target):
        position = number * step if align_corners else max((number + 0.5) * step - 0.5, 0.0)
        lowest, highest = int(max(position - _ROUNDING, 0.0)), int(position + _ROUNDING) + 1
        for place in {min(place, size - 1) for place in range(lowest, highest + 1)}:
            counts[place] += 1
    return max(counts)


def _summed_readers(grad: Any, dim: int, size: int, most: int, places: tuple[Any, Any, Any]) -> Any:
    """Sum the gradients of each element's readers along a dimension: neighbours, because places ascend."""
    low, high, weight = places
    target = grad.shape[dim]
    number = aten.unsqueeze.default(iota(size, grad), 1)
    first = aten.sum.dim_IntList(aten.lt.Tensor(aten.unsqueeze.default(high, 0), number), [1], True)
    reader = aten.add.Tensor(first, iota(most, grad))
    at = aten.clamp_max.default(reader, target - 1)
    share = aten.index.Tensor(weight, [at])
    lower, upper = (aten.eq.Tensor(aten.index.Tensor(table, [at]), number) for table in (low, high))
    factor = aten.where.ScalarOther(lower, aten.rsub.Scalar(share, 1.0), 0.0)
    factor = aten.add.Tensor(factor, aten.where.ScalarOther(upper, share, 0.0))
    reads = aten.bitwise_and.Tensor(aten.lt.Scalar(reader, target), aten.bitwise_or.Tensor(lower, upper))
    column = [size, *[1] * (len(grad.shape) - 1 - dim)]
    total = None
    for turn in range(most):
        here, given, valid = (aten.select.int(table, 1, turn) for table in (at, factor, reads))
        part = aten.mul.Tensor(aten.index.Tensor(grad, [*[None] * dim, here]), aten.view.default(given, column))
        part = aten.where.ScalarOther(aten.view.default(valid, column), part, 0.0)  # others may be infinite
        total = part if total is None else aten.add.Tensor(total, part)
    return total
