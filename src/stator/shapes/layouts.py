"""What torch asks of the sizes and strides of a tensor as a whole, answered for symbolic ones by an environment.

The ordinary layout arithmetic of shape rules lives in `prims/layout.py`; here is only what C++ asks of a symbolic node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .conditions import compare
from .environment import Environment
from .expr import Expr

Order = Callable[[Environment, Sequence[Expr], Sequence[Expr]], Sequence[int] | None]


def row_major_order(environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr]) -> Sequence[int]:
    return range(len(sizes) - 1, -1, -1)


def channels_last_order(rank: int) -> Order:
    """Innermost first: channels, then the spatial dimensions from the last, then the batch; None for another rank."""

    def order(environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr]) -> Sequence[int] | None:
        return (1, *range(rank - 1, 1, -1), 0) if len(sizes) == rank else None

    return order


def in_stride_order(environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr]) -> Sequence[int]:
    """Dimensions of more than one element by their strides, found by insertion so that few pairs are compared."""
    order: list[int] = []
    for dim in range(len(sizes) - 1, -1, -1):
        if environment.decide(compare("<=", sizes[dim], 1)):
            continue
        position = len(order)
        while position and environment.decide(compare("<", strides[dim], strides[order[position - 1]])):
            position -= 1
        order.insert(position, dim)
    return order


def densely_ordered(environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr], order: Order) -> bool:
    """Whether the elements lie side by side in that order of the dimensions; true for an empty tensor."""
    dims = order(environment, sizes, strides)
    if dims is None:
        return False
    expected: Expr | int = 1
    dense = True
    for dim in dims:
        if environment.decide(compare("==", sizes[dim], 1)):
            continue
        if not environment.decide(compare("==", strides[dim], expected)):
            dense = False
            break
        expected = sizes[dim] * expected
    return dense or any(environment.decide(compare("==", size, 0)) for size in sizes)


def suggests_channels_last(
    environment: Environment, sizes: Sequence[Expr], strides: Sequence[Expr], order: Order
) -> bool:
    """Whether the order of the strides is that of channels last, and not ambiguous."""
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
        smallest = stride * size if environment.decide(compare(">", size, 1)) else stride
    return True
