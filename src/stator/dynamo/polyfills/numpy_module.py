"""Functions of NumPy on arrays, in terms of those that are followed. Which arguments they are used for is decided in
calls/numpy_combinations.py."""

from __future__ import annotations

from typing import Any

from ..numpy_boundary import numpy as np


def outer(a: Any, b: Any) -> Any:
    return a.reshape(-1, 1) * b.reshape(1, -1)


def vstack(tup: Any) -> Any:
    return np.concatenate([one.reshape(1, -1) if one.ndim == 1 else one for one in tup])


def hstack(tup: Any) -> Any:
    return np.concatenate(tup, axis=0 if tup[0].ndim == 1 else 1)


def roll(a: Any, shift: int) -> Any:
    by = -shift % len(a)
    return np.concatenate([a[by:], a[:by]] if by else [a])


def tile(A: Any, reps: int) -> Any:
    return np.concatenate([A] * reps)


def repeat(a: Any, repeats: int) -> Any:
    return np.stack([a] * repeats, axis=1).reshape(-1)


def diff(a: Any) -> Any:
    return a[1:] - a[:-1]


def meshgrid(*xi: Any, indexing: str = "xy") -> tuple[Any, ...]:
    order = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        order[:2] = [1, 0]
    return tuple([_along(xi, order, order.index(at)) for at in range(len(xi))])


def _along(xi: Any, order: list[int], dim: int) -> Any:
    """The array at this dimension of the grid, the same at every place of the others."""
    grid = xi[order[dim]]
    for other, at in enumerate(order):
        if other != dim:
            grid = np.stack([grid] * len(xi[at]), axis=other)
    return grid


def norm(x: Any, ord: Any = None, axis: Any = None) -> Any:
    if ord == 1:
        return np.sum(np.abs(x), axis=axis)
    if ord == np.inf:
        return np.max(np.abs(x), axis=axis)
    return np.sqrt(np.sum(x * x, axis=axis))
