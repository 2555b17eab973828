"""Arguments of functions of NumPy, as their handlers take them: arrays, axes, dtypes, switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..array_operations import cast_operand, refused
from ..numpy_boundary import TORCH_OF, numpy
from ..values.arrays import ArrayValue
from ..values.base import NotConstant, Value
from ..values.classes import ClassValue
from ..values.constants import ConstantValue
from ..values.sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from ..tracer import Tracer


def array_of(tracer: Tracer, value: Value, what: str, *, only_held: bool = False) -> ArrayValue:
    """only_held: also of dtypes that torch does not compute in, where elements are moved alone."""
    if not isinstance(value, ArrayValue) or value.scalar or not value.shape:
        raise refused(tracer, what, [value])
    if value.dtype not in TORCH_OF and not only_held:
        raise refused(tracer, what, [value])
    return value


def plain(tracer: Tracer, value: Value) -> Any:
    """A constant, also in lists; what functions that only make arrays are called with. Raises NotConstant."""
    value = tracer.realized(value)
    if isinstance(value, ListValue) and value.cls is list:
        return [plain(tracer, item) for item in value.items]
    if isinstance(value, TupleValue):
        return tuple(plain(tracer, item) for item in value.items)
    if isinstance(value, ClassValue):
        return value.cls
    return value.constant()


def dtype_of(tracer: Tracer, value: Value | None) -> Any:
    """A dtype that was asked for, or None."""
    if value is None or tracer.is_none(value):
        return None
    try:
        return numpy.dtype(plain(tracer, value))
    except (NotConstant, TypeError):
        raise refused(tracer, "numpy.dtype", [value]) from None


def dtype_made(tracer: Tracer, dtype: Value) -> Value:
    return ConstantValue(dtype_of(tracer, dtype) or numpy.dtype(None))


def whole_number(tracer: Tracer, value: Value) -> int:
    found = tracer.constant_of(value, "an axis or size")
    if type(found) is not int:
        raise refused(tracer, "an axis or size", [value])
    return found


def axes_of(tracer: Tracer, axis: Value | None, array: ArrayValue) -> tuple[int, ...]:
    """Which dimensions to reduce."""
    if axis is None or tracer.is_none(axis):
        return tuple(range(len(array.shape)))
    if isinstance(axis, TupleValue):
        return tuple(whole_number(tracer, item) for item in axis.items)
    return (whole_number(tracer, axis),)


def flag(tracer: Tracer, value: Value | None) -> bool:
    return value is not None and tracer.truth(value)


def cast(tracer: Tracer, array: ArrayValue, dtype: Any, what: str) -> Value:
    """The tensor of an array in another dtype; a copy is made only if that is a change."""
    if not is_cast_alike(array.dtype, dtype):
        raise refused(tracer, f"{what} to {dtype}", [array])
    return cast_operand(tracer, array, dtype)


def is_cast_alike(dtype: Any, wanted: Any) -> bool:
    """Whether torch converts all values as NumPy does."""
    if not {dtype, wanted} <= TORCH_OF.keys():
        return False
    return dtype.kind != "f" or wanted.kind not in "iu" or (wanted.kind == "i" and wanted.itemsize >= 4)
