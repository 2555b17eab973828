"""Lowerings of views: index maps over closures, other strides over memory. Never moves an element."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from stator.base.errors import CompileError
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.registry import lowers, lowers_view
from stator.inductor.lower.tensor import Index, Stored, Strides, Tensor, view
from stator.inductor.sizes import SizeKnowledge, Sizes, product
from stator.prims.layout import same_strides, wrap_dim
from stator.shapes.expr import Expr, ExprLike, Ranges, modulo
from stator.shapes.extrema import Max, Min
from stator.shapes.simplify import simplify

aten = torch.ops.aten


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    dims = tuple(wrap_dim(dim, x.rank) for dim in dims)
    if dims == tuple(range(x.rank)):
        return x
    inverse = sorted(range(x.rank), key=dims.__getitem__)
    return view(
        x,
        [x.shape[dim] for dim in dims],
        lambda index, ranges: tuple([index[at] for at in inverse]),
        lambda strides, offset: (tuple([strides[dim] for dim in dims]), offset),
    )


def expand(x: Tensor, shape: Sequence[ExprLike]) -> Tensor:
    missing = len(shape) - x.rank
    sizes = tuple(x.shape[at - missing] if size == -1 else size for at, size in enumerate(shape))
    if sizes == x.shape:
        return x
    keeps = [x.shape[at] != 1 or sizes[missing + at] == 1 for at in range(x.rank)]

    def remap(index: Index, ranges: Ranges) -> Index:
        return tuple([index[missing + at] if keep else 0 for at, keep in enumerate(keeps)])

    def relayout(strides: Strides, offset: ExprLike) -> tuple[Strides, ExprLike]:
        own = tuple(stride if keep else 0 for stride, keep in zip(strides, keeps, strict=True))
        return (0,) * missing + own, offset

    return view(x, sizes, remap, relayout)


def slice_dim(x: Tensor, dim: int, start: ExprLike, size: ExprLike, step: ExprLike = 1) -> Tensor:
    """`size` elements of a dimension, from `start`, at distances of `step`."""
    if start == 0 and step == 1 and size == x.shape[dim]:
        return x
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])

    def remap(index: Index, ranges: Ranges) -> Index:
        return (*index[:dim], index[dim] * step + start, *index[dim + 1 :])

    def relayout(strides: Strides, offset: ExprLike) -> tuple[Strides, ExprLike]:
        moved = (*strides[:dim], strides[dim] * step, *strides[dim + 1 :])
        return moved, offset + start * strides[dim]

    return view(x, shape, remap, relayout)


def select(x: Tensor, dim: int, at: ExprLike) -> Tensor:
    """Take one element of a dimension and drop the dimension."""
    return view(
        x,
        (*x.shape[:dim], *x.shape[dim + 1 :]),
        lambda index, ranges: (*index[:dim], at, *index[dim:]),
        lambda strides, offset: ((*strides[:dim], *strides[dim + 1 :]), offset + at * strides[dim]),
    )


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    def relayout(strides: Strides, offset: ExprLike) -> tuple[Strides, ExprLike]:
        stride = x.shape[dim] * strides[dim] if dim < x.rank else 1
        return (*strides[:dim], stride, *strides[dim:]), offset

    return view(
        x,
        (*x.shape[:dim], 1, *x.shape[dim:]),
        lambda index, ranges: (*index[:dim], *index[dim + 1 :]),
        relayout,
    )


def squeeze(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Drop those of the dimensions that have one element."""
    dropped = {dim for dim in dims if x.shape[dim] == 1}
    if not dropped:
        return x
    kept = [dim for dim in range(x.rank) if dim not in dropped]

    def remap(index: Index, ranges: Ranges) -> Index:
        full: list[ExprLike] = [0] * x.rank
        for dim, at in zip(kept, index, strict=True):
            full[dim] = at
        return tuple(full)

    return view(
        x,
        [x.shape[dim] for dim in kept],
        remap,
        lambda strides, offset: (tuple([strides[dim] for dim in kept]), offset),
    )


def reshape(x: Tensor, shape: Sequence[ExprLike]) -> Tensor:
    """The elements in row-major order under another shape (one size may be -1)."""
    sizes = _inferred(x, shape)
    if sizes == x.shape:
        return x
    old = x.shape
    groups = _groups(old, sizes, x.sizes) if x.numel != 0 else []

    def remap(index: Index, ranges: Ranges) -> Index:
        result: list[ExprLike] = [0] * len(old)
        for old_dims, new_dims in groups:
            if len(old_dims) == 1 and len(new_dims) == 1:
                result[old_dims[0]] = index[new_dims[0]]
                continue
            position: ExprLike = 0
            for dim in new_dims:
                position = position * sizes[dim] + index[dim]
            inner: ExprLike = 1
            for at in range(len(old_dims) - 1, -1, -1):
                dim = old_dims[at]
                part = position // inner if inner != 1 else position
                if at:
                    part = part % old[dim]
                result[dim] = simplify(part, ranges)
                inner = inner * old[dim]
        return tuple(result)

    def relayout(strides: Strides, offset: ExprLike) -> tuple[Strides, ExprLike] | None:
        moved = _view_strides(old, strides, sizes, groups, x.sizes)
        return None if moved is None else (moved, offset)

    return view(x, sizes, remap, relayout)


def _inferred(x: Tensor, shape: Sequence[ExprLike]) -> Sizes:
    sizes = tuple(shape)
    if -1 not in sizes:
        return sizes
    known = product(size for size in sizes if size != -1)
    return tuple([x.sizes.simplify(x.numel // known) if size == -1 else size for size in sizes])


def _groups(old: Sizes, new: Sizes, sizes: SizeKnowledge) -> list[tuple[list[int], list[int]]]:
    """Runs of old and new dimensions with equal products, as short as possible, without dimensions of size one."""
    if sizes.environment is not None:
        return _symbolic_groups(old, new, sizes)
    old_dims = [dim for dim, size in enumerate(old) if size != 1]
    new_dims = [dim for dim, size in enumerate(new) if size != 1]
    groups: list[tuple[list[int], list[int]]] = []
    at_old = at_new = 0
    while at_old < len(old_dims):
        left, right = [old_dims[at_old]], [new_dims[at_new]]
        product_old, product_new = old[left[0]], new[right[0]]
        at_old, at_new = at_old + 1, at_new + 1
        while product_old != product_new:
            if product_old < product_new:
                left.append(old_dims[at_old])
                product_old *= old[old_dims[at_old]]
                at_old += 1
            else:
                right.append(new_dims[at_new])
                product_new *= new[new_dims[at_new]]
                at_new += 1
        groups.append((left, right))
    return groups


def _symbolic_groups(old: Sizes, new: Sizes, sizes: SizeKnowledge) -> list[tuple[list[int], list[int]]]:
    """`_groups` of symbolic sizes: the example says which side to extend, equal expressions end a run."""
    left = [dim for dim, size in enumerate(old) if size != 1]
    right = [dim for dim, size in enumerate(new) if size != 1]
    groups: list[tuple[list[int], list[int]]] = []
    run: tuple[list[int], list[int]] = ([], [])
    while left or right:
        products = product(old[dim] for dim in run[0]), product(new[dim] for dim in run[1])
        first, second = sizes.hints(products)
        longer = left and (not right or first < second or (first == second and len(run[0]) <= len(run[1])))
        if longer:
            run[0].append(left.pop(0))
        else:
            run[1].append(right.pop(0))
        if run[0] and run[1] and product(old[dim] for dim in run[0]) == product(new[dim] for dim in run[1]):
            groups.append(run)
            run = ([], [])
    if run[0] or run[1]:  # products that facts make equal
        if not (run[0] and run[1]):
            last = groups.pop() if groups else ([], [])
            run = (last[0] + run[0], last[1] + run[1])
        groups.append(run)
    return groups


def _view_strides(
    old: Sizes, strides: Strides, new: Sizes, groups: list[tuple[list[int], list[int]]], sizes: SizeKnowledge
) -> Strides | None:
    """Strides of a reshaped view; None when a group of old dimensions is not evenly spaced."""
    result: list[Any] = [None] * len(new)
    for old_dims, new_dims in groups:
        for outer, inner in itertools.pairwise(old_dims):
            if strides[outer] != strides[inner] * old[inner]:
                return None
        running = strides[old_dims[-1]]
        for dim in reversed(new_dims):
            result[dim] = running
            running = running * new[dim]
    # a dimension of size one gets the stride of a row-major layout
    following: Any = 1
    for dim in range(len(new) - 1, -1, -1):
        if result[dim] is None:
            result[dim] = following
        following = result[dim] * (new[dim] if new[dim] != 0 else 1)
        if following == 0:
            following = 1
    return tuple(result)


# ---- operators


@lowers_view(aten.transpose.int)
def _transpose(builder: LoweringBuilder, x: Tensor, first: int, second: int) -> Tensor:
    if x.rank == 0:
        return x
    first, second = wrap_dim(first, x.rank), wrap_dim(second, x.rank)
    dims = list(range(x.rank))
    dims[first], dims[second] = second, first
    return permute(x, dims)


@lowers_view(aten.expand.default)
def _expand(builder: LoweringBuilder, x: Tensor, shape: Sequence[int], *, implicit: bool = False) -> Tensor:
    grows = 1
    for size in x.sizes.hints(shape):
        grows *= max(size, 1)
    if x.resolved() is None and x.heavy and x.reads and grows > max(x.sizes.hint(x.numel), 1):
        builder.realize(x)  # else every copy would compute it again
    return expand(x, shape)


@lowers_view(aten.slice.Tensor)
def _slice(
    builder: LoweringBuilder, x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Tensor:
    dim = wrap_dim(dim, x.rank)
    first, last = slice_bounds(x.sizes, x.shape[dim], start, end)
    if x.sizes.environment is not None:
        return slice_dim(x, dim, first, builder.meta.shape[dim], step)
    return slice_dim(x, dim, first, max(0, -(-(last - first) // step)), step)


def slice_bounds(sizes: SizeKnowledge, size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """First and last (exclusive) position of a slice of a dimension, as in Python."""
    if not any(isinstance(one, Expr) for one in (size, start, end)):
        return slice(start, end, 1).indices(size)[:2]
    return tuple(  # type: ignore[return-value]
        [_clamped(sizes, size, default if at is None else at) for at, default in ((start, 0), (end, size))]
    )


def _clamped(sizes: SizeKnowledge, size: ExprLike, at: ExprLike) -> ExprLike:
    at = at + size if sizes.decide("<", at, 0) else at
    if not sizes.known(">=", at, 0):
        at = Max.of(at, 0)
    return at if sizes.known("<=", at, size) else sizes.simplify(Min.of(at, size))


@lowers_view(aten.select.int)
def _select(builder: LoweringBuilder, x: Tensor, dim: int, at: ExprLike) -> Tensor:
    dim = wrap_dim(dim, x.rank)
    return select(x, dim, position_from_start(x, dim, at))


def position_from_start(x: Tensor, dim: int, at: ExprLike) -> ExprLike:
    """A position in a dimension; negative ones count from its end."""
    return at + x.shape[dim] if x.sizes.decide("<", at, 0) else at


@lowers_view(aten.unbind.int)
def _unbind(builder: LoweringBuilder, x: Tensor, dim: int = 0) -> list[Tensor]:
    dim = wrap_dim(dim, x.rank)
    return [select(x, dim, at) for at in range(len(builder.meta))]


@lowers_view(aten.split.Tensor)
def _split(builder: LoweringBuilder, x: Tensor, size: Any, dim: int = 0) -> list[Tensor]:
    dim = wrap_dim(dim, x.rank)
    if x.sizes.environment is not None:
        return [slice_dim(x, dim, at * size, part.shape[dim]) for at, part in enumerate(builder.meta)]
    total = x.shape[dim]
    starts = range(0, total, size) if total else [0]
    return [slice_dim(x, dim, start, min(size, total - start)) for start in starts]


@lowers_view(aten.split_with_sizes.default)
def _split_with_sizes(builder: LoweringBuilder, x: Tensor, sizes: Sequence[Any], dim: int = 0) -> list[Tensor]:
    dim = wrap_dim(dim, x.rank)
    parts: list[Tensor] = []
    start: Any = 0
    for size in sizes:
        parts.append(slice_dim(x, dim, start, size))
        start = start + size
    return parts


@lowers_view(aten.squeeze.dim, aten.squeeze.dims)
def _squeeze_dims(builder: LoweringBuilder, x: Tensor, dims: int | Sequence[int]) -> Tensor:
    if x.rank == 0:
        return x
    return squeeze(x, [wrap_dim(dim, x.rank) for dim in ([dims] if isinstance(dims, int) else dims)])


@lowers_view(aten.diagonal.default)
def _diagonal(builder: LoweringBuilder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    dim1, dim2 = wrap_dim(dim1, x.rank), wrap_dim(dim2, x.rank)
    rows, columns = max(-offset, 0), max(offset, 0)
    size: Any = builder.meta.shape[-1]
    kept = [dim for dim in range(x.rank) if dim not in (dim1, dim2)]

    def remap(index: Index, ranges: Ranges) -> Index:
        full: list[ExprLike] = [0] * x.rank
        for dim, at in zip(kept, index, strict=False):
            full[dim] = at
        full[dim1], full[dim2] = index[-1] + rows, index[-1] + columns
        return tuple(full)

    def relayout(strides: Strides, start: ExprLike) -> tuple[Strides, ExprLike]:
        moved = (*(strides[dim] for dim in kept), strides[dim1] + strides[dim2])
        return moved, start + (rows * strides[dim1] + columns * strides[dim2] if size != 0 else 0)

    return view(x, [*(x.shape[dim] for dim in kept), size], remap, relayout)


@lowers_view(aten.unfold.default)
def _unfold(builder: LoweringBuilder, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if x.rank == 0:
        return NotImplemented
    dim = wrap_dim(dim, x.rank)
    count = (x.shape[dim] - size) // step + 1
    return view(
        x,
        (*x.shape[:dim], count, *x.shape[dim + 1 :], size),
        lambda index, ranges: (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1]),
        lambda strides, offset: (
            (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim]),
            offset,
        ),
    )


@lowers_view(aten.as_strided.default)
def _as_strided(
    builder: LoweringBuilder, x: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> Tensor:
    """Address memory in eager's layout. x is copied to that layout if lowering chose another one, or if x is a copy
    that shares memory with its source. The offset counts from the start of eager's storage."""
    meta = builder.node.args[0].meta["val"]
    start = 0 if offset is None else offset - meta.offset
    if 0 not in size and not _covers(x.sizes, start, _reach(size, stride), _reach(meta.shape, meta.stride)):
        raise CompileError("inductor", "as_strided addresses memory that its argument does not cover")
    planned, stored = x.planned(), None
    if planned is not None and not x.copies and same_strides(x.shape, planned[0], meta.stride):
        builder.realize(x.root)
        stored = x.resolved()
    if stored is None:
        if x.sizes.may_overlap(meta.shape, meta.stride):
            raise CompileError("inductor", "as_strided of a tensor with overlapping elements, which cannot be stored")
        stored = builder.copy(x, meta.stride).resolved()
    assert stored is not None
    place = Stored(stored.buffer, tuple(stride), stored.offset + start)
    return Tensor(size, x.dtype, x.device, place, sizes=x.sizes)


def _covers(sizes: SizeKnowledge, start: ExprLike, reach: ExprLike, whole: ExprLike) -> bool:
    return all(sizes.decide("<=", low, high) for low, high in ((0, start), (0, reach), (start + reach, whole)))


def _reach(size: Sequence[Any], stride: Sequence[Any]) -> Any:
    """The distance from the first element to the last; -1 without elements."""
    return -1 if 0 in size else sum((length - 1) * step for length, step in zip(size, stride, strict=True))


# ---- index maps that strides cannot express


@lowers(aten.flip.default)
def _flip(builder: LoweringBuilder, x: Tensor, dims: Sequence[int]) -> Tensor:
    flipped = {wrap_dim(dim, x.rank) for dim in dims}

    def remap(index: Index, ranges: Ranges) -> Index:
        return tuple(
            [(x.shape[dim] - 1) - at if dim in flipped and x.shape[dim] != 0 else at for dim, at in enumerate(index)]
        )

    return _moved(x, x.shape, remap)


@lowers(aten.roll.default)
def _roll(builder: LoweringBuilder, x: Tensor, shifts: Any, dims: Sequence[int] | int = ()) -> Tensor:
    shifts = list(shifts) if isinstance(shifts, tuple | list) else [shifts]
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        return reshape(_rolled(reshape(x, (x.numel,)), {0: shifts[0]}), x.shape)
    amounts: dict[int, Any] = {}
    for dim, shift in zip(dims, shifts, strict=True):
        dim = wrap_dim(dim, x.rank)
        amounts[dim] = amounts.get(dim, 0) + shift
    return _rolled(x, amounts)


def _rolled(x: Tensor, amounts: dict[int, Any]) -> Tensor:
    def remap(index: Index, ranges: Ranges) -> Index:
        moved = list(index)
        for dim, shift in amounts.items():
            size = x.shape[dim]
            if size not in (0, 1):
                size = simplify(Max.of(size, 1), ranges)  # the host divides by it where the dimension is empty, too
                moved[dim] = simplify((index[dim] - modulo(shift, size) + size) % size, ranges)
        return tuple(moved)

    return _moved(x, x.shape, remap)


def _moved(x: Tensor, shape: Sequence[int], remap: Any) -> Tensor:
    return view(x, shape, remap, lambda strides, offset: None)


lowers_view(aten.view.default, aten._unsafe_view.default, aten.reshape.default)(
    lambda builder, x, shape: reshape(x, shape)
)
lowers_view(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default)(lambda builder, x: x)
lowers_view(aten.permute.default)(lambda builder, x, dims: permute(x, dims))
lowers_view(aten.t.default)(lambda builder, x: x if x.rank < 2 else permute(x, (1, 0)))
lowers_view(aten.unsqueeze.default)(lambda builder, x, dim: unsqueeze(x, wrap_dim(dim, x.rank + 1)))
lowers_view(aten.squeeze.default)(lambda builder, x: squeeze(x, range(x.rank)))
