"""Functions of NumPy on arrays, in terms of those that are followed. Which arguments they are used for is decided in
handlers/numpy_calls/numpy_combinations.py."""

from __future__ import annotations

from typing import Any

from stator.dynamo.host.numpy_boundary import numpy as np


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


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    size = ary.shape[axis]
    if isinstance(indices_or_sections, int):
        each, longer = divmod(size, indices_or_sections)
        bounds = [at * each + min(at, longer) for at in range(indices_or_sections + 1)]
    else:
        bounds = [0, *indices_or_sections, size]
    before = (slice(None),) * (axis % ary.ndim)
    return [ary[(*before, slice(bounds[at], bounds[at + 1]))] for at in range(len(bounds) - 1)]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    if isinstance(indices_or_sections, int) and ary.shape[axis] % indices_or_sections:
        raise ValueError("array split does not result in an equal division")
    return array_split(ary, indices_or_sections, axis)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    return split(ary, indices_or_sections, 1 if ary.ndim > 1 else 0)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    return split(ary, indices_or_sections, 0)


def moveaxis(a: Any, source: int, destination: int) -> Any:
    order = [at for at in range(a.ndim) if at != source % a.ndim]
    order.insert(destination % a.ndim, source % a.ndim)
    return a.transpose(order)


def atleast_1d(ary: Any) -> Any:
    return ary


def atleast_2d(ary: Any) -> Any:
    return ary[None] if ary.ndim == 1 else ary


def atleast_3d(ary: Any) -> Any:
    if ary.ndim == 1:
        return ary[None, :, None]
    return ary[:, :, None] if ary.ndim == 2 else ary
