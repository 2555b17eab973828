"""Reductions and running sums of arrays, by functions of torch in the dtypes that NumPy computes in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.host.numpy_boundary import numpy
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue

from .array_operations import cast_operand, check_layout, checked, refused
from .numpy_arguments import array_of, axes_of, flag, whole_number

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


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
    def handler(
        context: CaptureContext, a: Value, axis: Value | None = None, *, keepdims: Value | None = None
    ) -> Value:
        array = array_of(context, a, f"numpy.{name}")
        dtype = result_dtype(array.dtype)
        if dtype is None:
            raise refused(context, f"numpy.{name}", [a])
        operand = cast_operand(context, array, dtype)
        dims = context.known(axes_of(context, axis, array))
        keep = ConstantValue(flag(context, keepdims))
        reduced = context.record_function(function, [operand, dims, keep], {})
        check_layout(context, reduced, [array], name)
        return checked(context, reduced, dtype, name)

    return handler


def deviation(name: str, function: Any) -> Callable[..., Value]:
    def handler(
        context: CaptureContext,
        a: Value,
        axis: Value | None = None,
        *,
        ddof: Value | None = None,
        keepdims: Value | None = None,
    ) -> Value:
        array = array_of(context, a, f"numpy.{name}")
        dtype = _averaged(array.dtype)
        axes = axes_of(context, axis, array)
        correction = 0 if ddof is None else whole_number(context, ddof)
        if not all(-len(array.shape) <= at < len(array.shape) for at in axes):
            raise refused(context, f"numpy.{name} over such an axis", [a])
        if math.prod(array.shape[at] for at in axes) <= correction:
            raise refused(context, f"numpy.{name} of as few elements", [a])
        named: dict[str, Value] = {
            "correction": ConstantValue(correction),
            "keepdim": ConstantValue(flag(context, keepdims)),
        }
        operand = cast_operand(context, array, dtype)
        reduced = context.record_function(function, [operand, context.known(axes)], named)
        check_layout(context, reduced, [array], name)
        return checked(context, reduced, dtype, name)

    return handler


def position(name: str, function: Any) -> Callable[..., Value]:
    def handler(context: CaptureContext, a: Value, axis: Value | None = None) -> Value:
        array = array_of(context, a, f"numpy.{name}")
        if array.dtype.kind == "b":
            raise refused(context, f"numpy.{name}", [a])
        dims = [] if axis is None or context.is_none(axis) else [ConstantValue(whole_number(context, axis))]
        found = context.record_function(function, [array.tensor, *dims], {})
        check_layout(context, found, [array], name)
        return checked(context, found, numpy.dtype("int64"), name)

    return handler


def running(name: str, function: Any) -> Callable[..., Value]:
    def handler(context: CaptureContext, a: Value, axis: Value | None = None) -> Value:
        array = array_of(context, a, f"numpy.{name}")
        dtype = _summed(array.dtype)
        if dtype is None or dtype.kind == "f":  # which torch adds up in another precision
            raise refused(context, f"numpy.{name}", [a])
        operand = cast_operand(context, array, dtype)
        if axis is None or context.is_none(axis):
            operand, axis = context.record_method("flatten", [operand], {}), ConstantValue(0)
        added = context.record_function(function, [operand, ConstantValue(whole_number(context, axis))], {})
        check_layout(context, added, [array], name)
        return checked(context, added, dtype, name)

    return handler
