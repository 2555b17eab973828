"""Reductions of arrays, by functions of torch in the dtypes that NumPy computes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.host.numpy_boundary import numpy
from stator.dynamo.values.base import CaptureContext, Value
from stator.dynamo.values.constants import ConstantValue

from .array_operations import cast_operand, check_layout, checked, refused
from .numpy_arguments import array_of, axes_of, flag, whole_number


def _same(dtype: Any) -> Any:
    return dtype


def _summed(dtype: Any) -> Any:
    """Sums of small whole numbers are int64; sums of unsigned ones are uint64, in which torch does not compute."""
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
