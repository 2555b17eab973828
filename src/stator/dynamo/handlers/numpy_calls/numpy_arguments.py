"""Reads arguments for handlers of NumPy's functions: arrays, axes, dtypes, switches."""

from __future__ import annotations

from typing import Any

from stator.dynamo.host.numpy_boundary import TORCH_OF, numpy
from stator.dynamo.values.base import CaptureContext, NotConstant, Value
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.tensors.arrays import ArrayValue

from .array_operations import cast_operand, refused


def array_of(context: CaptureContext, value: Value, what: str, *, only_held: bool = False) -> ArrayValue:
    """only_held: also arrays of dtypes that torch only stores, for functions that only move elements."""
    if not isinstance(value, ArrayValue) or value.scalar or not value.shape:
        raise refused(context, what, [value])
    if value.dtype not in TORCH_OF and not only_held:
        raise refused(context, what, [value])
    return value


def plain(context: CaptureContext, value: Value) -> Any:
    """The constant argument of a function that makes arrays, possibly in lists. Raises NotConstant."""
    value = context.realized(value)
    if isinstance(value, ListValue) and value.cls is list:
        return [plain(context, item) for item in value.items]
    if isinstance(value, TupleValue):
        return tuple(plain(context, item) for item in value.items)
    if isinstance(value, ClassValue):
        return value.cls
    return value.constant()


def dtype_of(context: CaptureContext, value: Value | None) -> Any:
    """The dtype that an argument names; None for no argument."""
    if value is None or context.is_none(value):
        return None
    try:
        return numpy.dtype(plain(context, value))
    except (NotConstant, TypeError):
        raise refused(context, "numpy.dtype", [value]) from None


def dtype_made(context: CaptureContext, dtype: Value) -> Value:
    return ConstantValue(dtype_of(context, dtype) or numpy.dtype(None))


def whole_number(context: CaptureContext, value: Value) -> int:
    found = context.constant_of(value, "an axis or size")
    if type(found) is not int:
        raise refused(context, "an axis or size", [value])
    return found


def axes_of(context: CaptureContext, axis: Value | None, array: ArrayValue) -> tuple[int, ...]:
    """The dimensions to reduce."""
    if axis is None or context.is_none(axis):
        return tuple(range(len(array.shape)))
    if isinstance(axis, TupleValue):
        return tuple(whole_number(context, item) for item in axis.items)
    return (whole_number(context, axis),)


def flag(context: CaptureContext, value: Value | None) -> bool:
    return value is not None and context.truth(value)


def cast(context: CaptureContext, array: ArrayValue, dtype: Any, what: str) -> Value:
    """The tensor of an array in another dtype, copied only if the dtype changes."""
    if not is_cast_alike(array.dtype, dtype):
        raise refused(context, f"{what} to {dtype}", [array])
    return cast_operand(context, array, dtype)


def is_cast_alike(dtype: Any, wanted: Any) -> bool:
    """Whether torch converts all values as NumPy does."""
    if not {dtype, wanted} <= TORCH_OF.keys():
        return False
    return dtype.kind != "f" or wanted.kind not in "iu" or (wanted.kind == "i" and wanted.itemsize >= 4)
