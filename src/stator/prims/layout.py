"""Arithmetic on sizes and strides: contiguity, memory formats, broadcasting, and eager's strides for new tensors.

Works for ints and symbolic ints: only arithmetic and comparisons, never `int()`. "Unknown" sizes are known only at run
time. No tensor is made here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from stator.shapes.environment import assume_large_sizes, assume_several
from stator.shapes.sym_node import remember_of_sizes, to_expression

Sizes = tuple[Any, ...]
F = TypeVar("F", bound=Callable[..., Any])


def surely(condition: Any) -> bool:
    """Whether a condition holds; for unknown sizes, whether it is certain. Relies on nothing."""
    return condition if type(condition) is bool else bool(condition.node.guard_or_false("", 0))


def holds(condition: Any) -> bool:
    """Whether a condition holds that eager requires. For unknown sizes the graph relies on it."""
    return condition if type(condition) is bool else bool(condition.node.expect_true("", 0))


def is_unknown(size: Any) -> bool:
    """Whether this number is known only at run time."""
    return type(size) is torch.SymInt and not size.node.has_hint()


def has_zero(shape: Sequence[Any]) -> bool:
    """Whether a tensor of this shape is empty; False for unknown sizes."""
    return any(surely(size == 0) for size in shape)


def same_sizes(first: Sizes, second: Sizes) -> bool:
    """Whether the sizes are known to be equal. Relies on nothing."""
    return len(first) == len(second) and all(surely(a == b) for a, b in zip(first, second, strict=True))


def equal_sizes(first: Sizes, second: Sizes) -> bool:
    """`same_sizes`, quick for ints."""
    if first is second:
        return True
    if torch.SymInt in map(type, first) or torch.SymInt in map(type, second):
        return same_sizes(first, second)
    return first == second


def same_strides(shape: Sizes, first: Sizes, second: Sizes) -> bool:
    """Whether two layouts surely put every element at the same place. Strides of dimensions of size one, or of empty
    tensors, do not matter."""
    if equal_sizes(first, second) or any(surely(size == 0) for size in shape):
        return True
    return all(
        always_equal(size, 1) or surely(a == b) or surely(size == 1)
        for size, a, b in zip(shape, first, second, strict=True)
    )


def always_equal(first: Any, second: Any) -> bool:
    """Whether two sizes, or tuples of sizes, are equal for all values of their symbols. Relies on nothing, also where
    examples are equal."""
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(always_equal, first, second))
    if first is second:
        return True
    return always_true(first == second)


def always_true(condition: Any) -> bool:
    """Whether a condition holds for all values of its symbols. Relies on nothing."""
    return condition if type(condition) is bool else bool(condition.node.statically_known_true("", 0))


def _answering(context: Callable[[Sizes], AbstractContextManager[None]]) -> Callable[[F], F]:
    """Make a function of sizes and strides ask its questions about symbolic sizes in a context of these sizes."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def ask(*args: Any) -> Any:
            second = args[1]
            try:
                hash((args[0], tuple(second) if type(second) is list else second))
            except TypeError:  # symbolic sizes have no hash
                return _asked(context, function, args)
            return function(*args)

        return ask  # type: ignore[return-value]

    return decorate


def _asked(context: Callable[[Sizes], AbstractContextManager[None]], function: Callable[..., Any], args: Any) -> Any:
    """The result of a function of symbolic sizes that asks its questions in a context of the first of them."""

    def compute() -> Any:
        with context(args[0]):
            return function(*args)

    return remember_of_sizes(function, args, compute)


def several_sizes(*shapes: Sequence[Any]) -> AbstractContextManager[None]:
    """`assume_several` of sizes, and of all other numbers."""
    return assume_several([to_expression(size) for shape in shapes for size in shape], numbers=True)


_treat_unknown_as_large = _answering(lambda shape: assume_large_sizes())
# For results that a size of 1 changes in nothing but the stride of its dimension
_treat_as_several = _answering(several_sizes)


_contiguous: dict[Sizes, Sizes] = {}


def contiguous_strides(shape: Sequence[Any]) -> Sizes:
    """Return row-major strides. A size of zero counts as one, as in eager."""
    key = shape if type(shape) is tuple else tuple(shape)
    try:
        found = _contiguous.get(key)
    except TypeError:  # symbolic sizes have no hash
        return _asked(several_sizes, _row_major, (key,))  # type: ignore[no-any-return]
    if found is None:
        found = _contiguous[key] = _row_major(key)
    return found


def _row_major(shape: Sizes) -> Sizes:
    strides = []
    running = 1
    for size in reversed(shape):
        strides.append(running)
        if size != 0:
            running = running * size
    return tuple(reversed(strides))


@_treat_as_several
def permuted_strides(shape: Sizes, innermost_first: Sequence[int]) -> Sizes:
    """Return dense strides in which the dimensions vary in the given order, fastest first."""
    strides: list[Any] = [1] * len(shape)
    running = 1
    for dim in innermost_first:
        strides[dim] = running
        if shape[dim] != 0:
            running = running * shape[dim]
    return tuple(strides)


def channels_last_strides(shape: Sizes) -> Sizes:
    """Return NHWC strides of a 4-d shape, NDHWC strides of a 5-d one. A size of zero makes slower strides zero."""
    rank = len(shape)
    strides: list[Any] = [1] * rank
    running = shape[1]
    for dim in (*range(rank - 1, 1, -1), 0):
        strides[dim] = running
        running = running * shape[dim]
    return tuple(strides)


def numel(shape: Sizes) -> Any:
    count = 1
    for size in shape:
        count = count * size
    return count


def extent(shape: Sizes, strides: Sizes) -> Any:
    """Return the number of elements from the first to the last that strides reach, both included."""
    if has_zero(shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def smaller_size(first: Any, second: Any) -> Any:
    """Return the smaller of two sizes, without a guard on which one that is."""
    if type(first) is int and type(second) is int:
        return min(first, second)
    return torch.sym_min(first, second)


@_treat_unknown_as_large
def is_contiguous(shape: Sizes, strides: Sizes) -> bool:
    if always_equal(strides, contiguous_strides(shape)):
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 0:
            return True
        if not always_equal(stride, expected):
            if size == 1:
                continue
            if stride != expected:
                return any(other == 0 for other in shape)
        expected = expected * size
    return True


@_treat_unknown_as_large
def is_channels_last(shape: Sizes, strides: Sizes) -> bool:
    """Whether the elements lie densely in NHWC (4-d) or NDHWC (5-d) order."""
    rank = len(shape)
    if rank not in (4, 5):
        return False
    expected = 1
    for dim in (1, *range(rank - 1, 1, -1), 0):
        size, stride = shape[dim], strides[dim]
        if not always_equal(stride, expected):
            if size == 1:
                continue
            if stride != expected:
                return False
        expected = expected * size
    return True


@_treat_unknown_as_large
def strides_like_channels_last(shape: Sizes, strides: Sizes) -> bool:
    """Whether eager would suggest the channels-last format, because the order of the strides is unambiguously that."""
    rank = len(shape)
    if rank not in (4, 5) or strides[1] == 0:
        return False
    smallest = 0
    for dim in (1, *range(rank - 1, 1, -1), 0):
        size, stride = shape[dim], strides[dim]
        if size == 0 or stride < smallest:
            return False
        if dim == 0 and smallest == strides[1]:
            return False
        smallest = stride * size
    return True


def suggested_strides(shape: Sizes, strides: Sizes, new_shape: Sizes) -> Sizes:
    """Return strides of a new tensor in the memory format that eager suggests for an input's shape and strides."""
    if len(new_shape) == len(shape) and strides_like_channels_last(shape, strides):
        return channels_last_strides(new_shape)
    return contiguous_strides(new_shape)


def format_strides(shape: Sizes, memory_format: torch.memory_format | None) -> Sizes:
    """Return strides of a new tensor in an explicit memory format; None means contiguous."""
    if memory_format is torch.channels_last or memory_format is torch.channels_last_3d:
        rank = 4 if memory_format is torch.channels_last else 5
        if len(shape) != rank:
            raise RuntimeError(f"required rank {rank} tensor to use {memory_format} format")
        return channels_last_strides(shape)
    return contiguous_strides(shape)


@_treat_as_several
def is_dense(shape: Sizes, strides: Sizes) -> bool:
    """Whether the elements fill their storage without overlap or gaps, in some order of the dimensions. If so for large
    sizes, then for all; False may be wrong for sizes of 1 that symbols stand for."""
    if is_contiguous(shape, strides):
        return True
    order = [dim for dim, size in enumerate(shape) if size != 1]
    order.sort(key=lambda dim: strides[dim])
    expected = 1
    for dim in order:
        if strides[dim] != expected:
            return False
        expected = expected * shape[dim]
    return True


@_treat_unknown_as_large
def may_overlap(shape: Sizes, strides: Sizes) -> bool:
    """Whether two elements could share memory, because a dimension's stride is within the span of faster dimensions."""
    if any(size == 0 for size in shape):
        return False
    reach = 0
    with several_sizes(shape):
        pairs = [(stride, size) for stride, size in zip(strides, shape, strict=True) if not always_equal(size, 1)]
        pairs.sort()
    for stride, size in pairs:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


@_treat_as_several
def preserved_strides(shape: Sizes, strides: Sizes) -> Sizes:
    """Return the strides of a format-preserving copy: unchanged if dense, else dense in the original order. These are
    equal but for dimensions of one element, so that a part of a symbolic size need not be asked if it is the whole."""
    if torch.SymInt in map(type, strides) and 0 not in shape and not any(always_equal(size, 1) for size in shape):
        return dense_strides(shape, strides)
    return strides if is_dense(shape, strides) else dense_strides(shape, strides)


@_treat_as_several
def dense_strides(shape: Sizes, strides: Sizes) -> Sizes:
    """Return strides without gaps, with the dimensions in the order of `strides`."""
    return permuted_strides(shape, _stride_order(shape, (strides,)))


def like_strides(shape: Sizes, strides: Sizes, memory_format: torch.memory_format | None) -> Sizes:
    """Return the strides of `empty_like`, `clone` and their kin, where None means preserve."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_strides(shape, strides)
    return format_strides(shape, memory_format)


def broadcast_shapes(first: Sizes, second: Sizes) -> Sizes:
    """Return the common shape of two operands. Raises eager's RuntimeError if there is none."""
    rank_first, rank_second = len(first), len(second)
    if rank_first == rank_second and always_equal(first, second):
        return first
    if rank_first < rank_second:
        padded_first, padded_second = (1,) * (rank_second - rank_first) + first, second
    else:
        padded_first, padded_second = first, (1,) * (rank_first - rank_second) + second
    result = []
    for dim, (a, b) in enumerate(zip(padded_first, padded_second, strict=True)):
        if always_equal(b, 1):
            result.append(a)
        elif always_equal(a, 1):
            result.append(b)
        elif surely(a == b):
            result.append(a if type(a) is int else b)
        elif surely(b == 1):
            result.append(a)
        elif surely(a == 1):
            result.append(b)
        elif holds(a == b):
            result.append(a if type(a) is int else b)
        else:
            raise RuntimeError(
                f"The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {dim}"
            )
    return tuple(result)


@_treat_as_several
def elementwise_strides(shape: Sizes, operands: Sequence[tuple[Sizes, Sizes]]) -> Sizes:
    """Return the strides that eager's TensorIterator gives the result of operands (shape, strides) broadcast to
    `shape`.

    Operands of equal shape and dense layout pass their layout on. Otherwise the operands' strides order the dimensions;
    broadcast dimensions do not count and earlier operands go first.
    """
    contiguous = contiguous_strides(shape)
    same_shape = all(len(own) == len(shape) and own == shape for own, _ in operands)
    empty = has_zero(shape)
    if (same_shape or not empty) and all(always_equal(strides, contiguous_strides(own)) for own, strides in operands):
        return contiguous
    symbolic = torch.SymInt in map(type, itertools.chain(shape, *(strides for _, strides in operands)))
    if (not symbolic or empty) and same_shape:
        passed_on = _passed_on(shape, operands)
        if passed_on is not None:
            return passed_on
    order = _stride_order(shape, [_expanded_strides(shape, *operand) for operand in operands])
    for dim, size in enumerate(shape):
        if type(size) is torch.SymInt and _order_relies_on_several(shape, operands, dim, order):
            with assume_several(()):
                if size == 1:  # relied on, one way or the other: strides of other dimensions follow from it
                    return elementwise_strides((*shape[:dim], 1, *shape[dim + 1 :]), operands)
    if order == list(range(len(shape) - 1, -1, -1)):
        return contiguous
    # a dense layout is the one by order, but for dimensions of one element, so that symbols are not asked for it
    if symbolic and not empty and same_shape and any(always_equal(size, 1) for size in shape):
        passed_on = _passed_on(shape, operands)
        if passed_on is not None:
            return passed_on
    dense: list[Any] = [1] * len(shape)
    running = 1
    for dim in order:  # unlike elsewhere, a size of zero makes the following strides zero
        dense[dim] = running
        running = running * shape[dim]
    return tuple(dense)


def _passed_on(shape: Sizes, operands: Sequence[tuple[Sizes, Sizes]]) -> Sizes | None:
    """Return the dense strides that operands of one shape share; None if they share none."""
    if all(is_contiguous(shape, strides) for _, strides in operands):
        return contiguous_strides(shape)
    if len(shape) == 4 and all(is_channels_last(shape, strides) for _, strides in operands):
        return channels_last_strides(shape)
    first = operands[0][1]
    return first if all(strides == first for _, strides in operands) and is_dense(shape, first) else None


def _expanded_strides(shape: Sizes, operand_shape: Sizes, strides: Sizes) -> Sizes:
    missing = len(shape) - len(operand_shape)
    return (0,) * missing + tuple(
        0 if not always_equal(own, size) and own == 1 and size != 1 else stride
        for own, size, stride in zip(operand_shape, shape[missing:], strides, strict=True)
    )


def _order_relies_on_several(
    shape: Sizes, operands: Sequence[tuple[Sizes, Sizes]], dim: int, order: Sequence[int]
) -> bool:
    """Whether the other dimensions would come in another order if `dim` had one element: operands with one element
    there would not be broadcast, and their strides would count."""
    places = [(own, dim - len(shape) + len(own)) for own, _ in operands]
    if not any(at >= 0 and type(own[at]) is int for own, at in places):
        return False
    one = (*shape[:dim], 1, *shape[dim + 1 :])
    other = _stride_order(one, [_expanded_strides(one, *operand) for operand in operands])
    return [each for each in other if each != dim] != [each for each in order if each != dim]


def _stride_order(shape: Sizes, operand_strides: Sequence[Sizes]) -> list[int]:
    """Return the dimensions from fastest to slowest: an insertion sort from row-major order, which keeps undecided
    pairs."""
    order = list(range(len(shape) - 1, -1, -1))
    symbolic = torch.SymInt in map(type, itertools.chain(shape, *operand_strides))
    compare = _slower_if_several if symbolic else _slower
    for start in range(1, len(order)):
        moving = start
        for other in range(start - 1, -1, -1):
            verdict = compare(shape, operand_strides, order[other], order[moving])
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif verdict < 0:
                break
    return order


def _slower_if_several(shape: Sizes, operand_strides: Sequence[Sizes], inner: int, outer: int) -> int:
    """`_slower` for symbolic sizes, of which only these two may be taken to be above 1: where another number is 1,
    such as a stride of overlapping elements, the two may change places."""
    with assume_several([to_expression(shape[inner]), to_expression(shape[outer])]):
        return _slower(shape, operand_strides, inner, outer)


def _slower(shape: Sizes, operand_strides: Sequence[Sizes], inner: int, outer: int) -> int:
    """Return 1 if `inner` should vary slower than `outer`, -1 if not, 0 if the strides do not decide."""
    for strides in operand_strides:
        first, second = strides[inner], strides[outer]
        if first == 0 or second == 0:
            continue
        if first < second:
            return -1
        if first > second:
            return 1
        if shape[inner] > shape[outer]:
            return 1
    return 0


def wrap_dim(dim: Any, rank: int) -> Any:
    """Return a dimension counted from the front. Raises eager's IndexError."""
    bound = rank if rank > 0 else 1
    if dim < -bound or dim >= bound:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {dim})")
    return dim + bound if dim < 0 else dim


def wrap_dims(dims: Sequence[Any] | Any, rank: int) -> tuple[Any, ...]:
    """Return dimensions counted from the front. Raises RuntimeError if one occurs twice."""
    wrapped = tuple(wrap_dim(dim, rank) for dim in (dims if isinstance(dims, (tuple, list)) else (dims,)))
    if len(set(wrapped)) != len(wrapped):
        raise RuntimeError(
            f"dim {next(dim for dim in wrapped if wrapped.count(dim) > 1)} appears multiple times in the list of dims"
        )
    return wrapped
