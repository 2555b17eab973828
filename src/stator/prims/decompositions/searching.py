"""Searching and selecting by comparison: binary search with a fixed number of steps, static nonzero, masked copies."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.prims.layout import has_zero, is_unknown, same_sizes

from .decomposition_decorator import cast, decomposes, decomposition_table, iota

aten = torch.ops.aten


def binary_search(boundaries: Any, values: Any, right: bool) -> Any:
    """Return, for each value, how many of the sorted boundaries (of the last dimension) are smaller, or with `right` at
    most equal. Binary search, one comparison per step."""
    count = boundaries.shape[-1]
    position = aten.zeros_like.default(values, dtype=torch.int64)
    step = _first_step(count)
    while step:
        candidate = aten.add.Tensor(position, step)
        place = aten.clamp_max.default(aten.sub.Tensor(candidate, 1), count - 1)
        if len(boundaries.shape) == 1:
            middle = aten.index.Tensor(boundaries, [place])
        else:
            middle = aten.gather.default(boundaries, -1, place)
        before = aten.logical_not.default(aten.gt.Tensor(middle, values) if right else aten.ge.Tensor(middle, values))
        inside = aten.logical_and.default(aten.le.Scalar(candidate, count), before)
        position = aten.where.self(inside, candidate, position)
        step >>= 1
    return position


def _first_step(count: Any) -> int:
    """A power of two, more than half of `count`; 0 for none. Symbolic counts share few first steps."""
    if type(count) is int:
        return 1 << count.bit_length() >> 1
    return 1 << next(bits for bits in (8, 16, 32, 63) if bits == 63 or count < 1 << bits) - 1


@decomposes("searchsorted.Tensor", wide=False)
def searchsorted(
    sorted_sequence: Any,
    self: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        sorted_sequence = aten.gather.default(sorted_sequence, -1, sorter)
    found = binary_search(sorted_sequence, self, right or side == "right")
    return cast(found, torch.int32 if out_int32 else torch.int64)


def exclusive_count(mask: Any) -> Any:
    """Return, for each element of a flat mask, the number of True elements before it."""
    flat = cast(mask, torch.int64)
    return aten.sub.Tensor(aten.cumsum.default(flat, 0), flat)


@decomposes("masked_scatter", wide=False)
def masked_scatter(self: Any, mask: Any, source: Any) -> Any:
    """Where the mask is True, take the elements of `source` in order. Too few elements are an IndexError. A mask of
    rows takes whole rows of a source that has such rows. A source that may be empty gets a row in front, which all
    other places take."""
    given, sizes = tuple(mask.shape), tuple(source.shape)
    base, mask = aten.broadcast_tensors.default([self, mask])
    shape = list(base.shape)
    if 0 in shape:
        return aten.clone.default(base)
    if has_zero(sizes):
        return NotImplemented
    may_be_empty = any(map(is_unknown, sizes))
    inner = 0  # dimensions of a row
    while inner < min(len(given), len(sizes)) and type(given[-1 - inner]) is int and given[-1 - inner] == 1:
        if not same_sizes((sizes[-1 - inner],), (shape[-1 - inner],)):
            break
        inner += 1
    rows = mask
    for _ in range(inner):
        rows = aten.select.int(rows, -1, 0)
    flat = aten.reshape.default(rows, [-1])
    count = exclusive_count(flat)
    place = aten.where.ScalarOther(flat, aten.add.Tensor(count, 1) if may_be_empty else count, 0)
    row = [math.prod(shape[len(shape) - inner :])] if inner else []
    table = aten.reshape.default(source, [math.prod(sizes[: len(sizes) - inner]), *row])
    if may_be_empty:
        table = aten.constant_pad_nd.default(table, [0, 0] * len(row) + [1, 0])
    picked = aten.index.Tensor(table, [place])
    return aten.where.self(mask, aten.reshape.default(picked, shape), base)


def positions(mask: Any, size: Any) -> Any:
    """Return the positions of the first `size` Trues of a flat mask, in order, and 0 where there are fewer."""
    order = exclusive_count(mask)
    kept = aten.logical_and.default(mask, aten.lt.Scalar(order, size))
    target = aten.where.ScalarOther(kept, order, size)  # an extra position takes the elements left out
    empty = aten.full.default([size + 1], 0, dtype=torch.int64, device=mask.device)
    places = aten.scatter.src(empty, 0, target, iota(mask.shape[0], mask))
    return aten.slice.Tensor(places, 0, 0, size)


@decomposes("nonzero_static", wide=False)
def nonzero_static(self: Any, *, size: int, fill_value: int = -1) -> Any:
    """The positions of the first `size` nonzero elements, filled up with `fill_value`."""
    rank, shape = len(self.shape), list(self.shape)
    if not rank or 0 in shape:
        return aten.full.default([size, rank], fill_value, dtype=torch.int64, device=self.device)
    flat = aten.reshape.default(aten.ne.Scalar(self, 0), [-1])
    places = positions(flat, size)
    columns = []
    for dim in range(rank):
        rest = math.prod(shape[dim + 1 :])
        column = aten.div.Tensor_mode(places, rest, rounding_mode="floor") if rest != 1 else places
        columns.append(aten.remainder.Scalar(column, shape[dim]))
    total = aten.sum.dim_IntList(cast(flat, torch.int64), [0])
    real = aten.unsqueeze.default(aten.lt.Tensor(iota(size, self), total), 1)
    found = aten.where.ScalarOther(real, aten.stack.default(columns, 1), fill_value)
    # eager's layout: one row per dimension in memory
    rows = aten.clone.default(aten.permute.default(found, [1, 0]), memory_format=torch.contiguous_format)
    return aten.permute.default(rows, [1, 0])


decomposition_table(
    {
        "bucketize.Tensor": lambda self, bounds, *, out_int32=False, right=False: cast(
            binary_search(bounds, self, right), torch.int32 if out_int32 else torch.int64
        ),
    },
    wide=False,
)
