"""torch's questions about the sizes and strides of a whole tensor, answered for symbolic values by an environment.

Only the questions that C++ asks of a symbolic node. The layout arithmetic of shape rules lives in `prims/layout.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .conditions import compare
from .environment import Environment, assume_several
from .expr import Expr

Order = Callable[[Environment, Sequence[Expr], Sequence[Expr]], Sequence[int] | None]


def row_major_order(environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr]) -> Sequence[int]:
    return range(len(sizes) - 1, -1, -1)


def channels_last_order(rank: int) -> Order:
    """The order, innermost first: channels, spatial dimensions from the last, batch. Gives None for another rank."""

    def order(environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr]) -> Sequence[int] | None:
        return (1, *range(rank - 1, 1, -1), 0) if len(sizes) == rank else None

    return order


def in_stride_order(environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr]) -> Sequence[int]:
    """Dimensions of more than one element, sorted by stride. Insertion sort keeps the number of comparisons small."""
    order: list[int] = []
    for dim in range(len(sizes) - 1, -1, -1):
        if environment.decide(compare("==", sizes[dim], 1)):
            continue
        position = len(order)
        while position and environment.decide(compare("<", strides[dim], strides[order[position - 1]])):
            position -= 1
        order.insert(position, dim)
    return order


def densely_ordered(environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr], order: Order) -> bool:
    """True if the elements are contiguous in that order of the dimensions, or if the tensor is empty."""
    with assume_several():  # dense for large sizes is dense for all
        dims = order(environment, sizes, strides)
    if dims is None:
        return False
    if _surely_dense(environment, sizes, strides, dims):
        return True
    dims = order(environment, sizes, strides)
    assert dims is not None
    expected: Expr | int = 1
    for dim in dims:
        fits = compare("==", strides[dim], expected)
        if environment.evaluate_static(fits) is not True:
            if environment.decide(compare("==", sizes[dim], 1)):
                continue
            if not environment.decide(fits):
                return any(environment.decide(compare("==", size, 0)) for size in sizes)
        expected = sizes[dim] * expected
    return True


def _surely_dense(
    environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr], dims: Sequence[int]
) -> bool:
    expected: Expr | int = 1
    for dim in dims:
        if environment.evaluate_static(compare("==", strides[dim], expected)) is not True:
            return False
        expected = sizes[dim] * expected
    return True


def suggests_channels_last(
    environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr], order: Order
) -> bool:
    """True if the strides are unambiguously in the order of channels last."""
    dims = order(environment, sizes, strides)
    if dims is None or environment.decide(compare("==", strides[1], 0)):
        return False
    smallest: Expr | int = 0
    for dim in dims:
        size, stride = sizes[dim], strides[dim]
        if environment.decide(compare("==", size, 0)) or environment.decide(compare("<", stride, smallest)):
            return False
        if dim == 0 and environment.decide(compare("==", strides[1], smallest)):
            return False
        smallest = stride * size
    return True
