"""Reductions and running sums of arrays, by functions of torch in the dtypes that NumPy computes in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..array_operations import cast_operand, check_layout, checked, refused
from ..numpy_boundary import numpy
from ..values.base import Value
from ..values.constants import ConstantValue
from .numpy_arguments import array_of, axes_of, flag, whole_number

if TYPE_CHECKING:
    from ..tracer import Tracer


def _same(dtype: Any) -> Any:
    return dtype


def _summed(dtype: Any) -> Any:
    """Sums and products of small whole numbers are int64; unsigned ones would be uint64, which torch does not have."""
    if dtype.kind == "u":
        return None
    return numpy.dtype("int64") if dtype.kind in "bi" else dtype


def _averaged(dtype: Any) -> Any:
    return dtype if dtype.kind == "f" else numpy.dtype("float64")


def _truth(dtype: Any) -> Any:
    return numpy.dtype(bool)


REDUCTIONS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sum": (torch.sum, _summed),
    "mean": (torch.mean, _averaged),
    "max": (torch.amax, _same),
    "min": (torch.amin, _same),
    "any": (torch.any, _truth),
    "all": (torch.all, _truth),
}


def reduction(name: str, function: Any, result_dtype: Callable[[Any], Any]) -> Callable[..., Value]:
    def handler(tracer: Tracer, a: Value, axis: Value | None = None, *, keepdims: Value | None = None) -> Value:
        array = array_of(tracer, a, f"numpy.{name}")
        dtype = result_dtype(array.dtype)
        if dtype is None:
            raise refused(tracer, f"numpy.{name}", [a])
        operand = cast_operand(tracer, array, dtype)
        dims = tracer.known(axes_of(tracer, axis, array))
        keep = ConstantValue(flag(tracer, keepdims))
        reduced = tracer.record_function(function, [operand, dims, keep], {})
        check_layout(tracer, reduced, [array], name)
        return checked(tracer, reduced, dtype, name)

    return handler


def deviation(name: str, function: Any) -> Callable[..., Value]:
    def handler(
        tracer: Tracer,
        a: Value,
        axis: Value | None = None,
        *,
        ddof: Value | None = None,
        keepdims: Value | None = None,
    ) -> Value:
        array = array_of(tracer, a, f"numpy.{name}")
        dtype = _averaged(array.dtype)
        axes = axes_of(tracer, axis, array)
        correction = 0 if ddof is None else whole_number(tracer, ddof)
        if not all(-len(array.shape) <= at < len(array.shape) for at in axes):
            raise refused(tracer, f"numpy.{name} over such an axis", [a])
        if math.prod(array.shape[at] for at in axes) <= correction:
            raise refused(tracer, f"numpy.{name} of as few elements", [a])
        named: dict[str, Value] = {
            "correction": ConstantValue(correction),
            "keepdim": ConstantValue(flag(tracer, keepdims)),
        }
        operand = cast_operand(tracer, array, dtype)
        reduced = tracer.record_function(function, [operand, tracer.known(axes)], named)
        check_layout(tracer, reduced, [array], name)
        return checked(tracer, reduced, dtype, name)

    return handler


def position(name: str, function: Any) -> Callable[..., Value]:
    def handler(tracer: Tracer, a: Value, axis: Value | None = None) -> Value:
        array = array_of(tracer, a, f"numpy.{name}")
        if array.dtype.kind == "b":
            raise refused(tracer, f"numpy.{name}", [a])
        dims = [] if axis is None or tracer.is_none(axis) else [ConstantValue(whole_number(tracer, axis))]
        found = tracer.record_function(function, [array.tensor, *dims], {})
        check_layout(tracer, found, [array], name)
        return checked(tracer, found, numpy.dtype("int64"), name)

    return handler


def running(name: str, function: Any) -> Callable[..., Value]:
    def handler(tracer: Tracer, a: Value, axis: Value | None = None) -> Value:
        array = array_of(tracer, a, f"numpy.{name}")
        dtype = _summed(array.dtype)
        if dtype is None or dtype.kind == "f":  # which torch adds up in another precision
            raise refused(tracer, f"numpy.{name}", [a])
        operand = cast_operand(tracer, array, dtype)
        if axis is None or tracer.is_none(axis):
            operand, axis = tracer.record_method("flatten", [operand], {}), ConstantValue(0)
        added = tracer.record_function(function, [operand, ConstantValue(whole_number(tracer, axis))], {})
        check_layout(tracer, added, [array], name)
        return checked(tracer, added, dtype, name)

    return handler
