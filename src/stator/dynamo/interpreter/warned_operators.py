"""Operators of which eager warns in C++, when they run. Compiled code computes them by other means, which say nothing:
where the arguments are those that eager warns of, the operator stays outside of graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import has_zero, numel, surely

aten = torch.ops.aten


def check_warnings(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises Unsupported."""
    warned = _WARNED.get(func)
    if warned is not None and warned(args, kwargs):
        raise Unsupported("operator-warning", f"{func}, of which torch warns with these arguments")


def _lacks_freedom(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Variances of no more elements than the correction takes away."""
    shape = tuple(args[0].shape)
    given = args[1] if len(args) > 1 else kwargs.get("dim")
    rank = len(shape)
    dims = {dim % rank for dim in given if -rank <= dim < rank} if given and rank else set(range(rank))
    correction = kwargs.get("correction")
    count = numel(tuple(shape[dim] for dim in sorted(dims)))
    none = has_zero([size for dim, size in enumerate(shape) if dim not in dims])
    return surely((0 if none else count) <= (1 if correction is None else correction))


def _indexes_by_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(index is not None and index.dtype is torch.uint8 for index in args[1])


def _decides_by_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return args[0].dtype is torch.uint8


def _converts_to_real(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    wanted = kwargs.get("dtype")
    return wanted is not None and _loses_imaginary_part(args[0], wanted)


def _copies_to_real(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _loses_imaginary_part(args[1], args[0].dtype)


def _loses_imaginary_part(given: Any, wanted: torch.dtype) -> bool:
    # vmap hands numbers on where tensors are meant
    return isinstance(given, torch.Tensor) and given.is_complex() and not (wanted.is_complex or wanted is torch.bool)


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


_WARNED: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], bool]] = {
    **dict.fromkeys((aten.var.correction, aten.std.correction), _lacks_freedom),
    **dict.fromkeys((aten.var_mean.correction, aten.std_mean.correction), _lacks_freedom),
    **dict.fromkeys((aten.index.Tensor, aten.index_put_.default, aten.index_put.default), _indexes_by_bytes),
    aten.where.self: _decides_by_bytes,
    aten._to_copy.default: _converts_to_real,
    aten.copy_.default: _copies_to_real,
    **dict.fromkeys((aten.cholesky.default, aten.triangular_solve.default), _always),  # deprecated
}
