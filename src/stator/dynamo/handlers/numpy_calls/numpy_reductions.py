"""Reductions of arrays, and functions of one array and constants, by functions of torch in NumPy's dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stator.dynamo.host.numpy_boundary import numpy
from stator.dynamo.values.base import CaptureContext, NotConstant, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.tensors.tensor import TensorValue

from .array_operations import cast_operand, check_layout, checked, refused
from .numpy_arguments import array_of, axes_of, cast, dtype_of, flag, plain, whole_number


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
    "std": (torch.std, _averaged),
    "var": (torch.var, _averaged),
    "max": (torch.amax, _same),
    "min": (torch.amin, _same),
    "any": (torch.any, _truth),
    "all": (torch.all, _truth),
}


def reduction(name: str, function: Any, result_dtype: Callable[[Any], Any]) -> Callable[..., Value]:
    def handler(
        context: CaptureContext,
        a: Value,
        axis: Value | None = None,
        dtype: Value | None = None,
        *,
        ddof: Value | None = None,
        keepdims: Value | None = None,
    ) -> Value:
        array = array_of(context, a, f"numpy.{name}")
        wanted = dtype_of(context, dtype)
        computed = result_dtype(wanted or array.dtype)
        of_spread = function in (torch.std, torch.var)
        if computed is None or (wanted is not None and computed != wanted) or (ddof is not None and not of_spread):
            raise refused(context, f"numpy.{name}", [a])
        named: dict[str, Value] = {
            "dim": context.known(axes_of(context, axis, array)),
            "keepdim": ConstantValue(flag(context, keepdims)),
        }
        if of_spread:
            named["correction"] = ConstantValue(0 if ddof is None else whole_number(context, ddof))
        reduced = context.record_function(function, [cast(context, array, computed, f"numpy.{name}")], named)
        check_layout(context, reduced, [array], name)
        return checked(context, reduced, computed, name)

    return handler


def vector_norm(
    context: CaptureContext,
    x: Value,
    ord: Value | None = None,
    axis: Value | None = None,
    keepdims: Value | None = None,
) -> Value:
    """numpy.linalg.norm with the default norm: the root of the sum of squares."""
    if ord is not None and not context.is_none(ord):
        raise refused(context, "numpy.linalg.norm", [x, ord])
    options = {} if keepdims is None else {"keepdims": keepdims}
    return reduction("linalg.norm", torch.linalg.vector_norm, _averaged)(context, x, axis, **options)


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """A function of torch that takes an array and the constants `parameters` in NumPy's order.

    A default of None is left to torch, with `flattens` after the array is made flat. is_view: the result shares
    the memory, with the strides that NumPy gives it.
    """

    function: Any
    parameters: dict[str, Any]
    result_dtype: Callable[[Any], Any] = _same
    is_view: bool = False
    flattens: bool = False


_AXIS = {"axis": None}
REARRANGEMENTS: dict[str, Rearrangement] = {
    "cumsum": Rearrangement(torch.cumsum, _AXIS, _summed, flattens=True),
    "cumprod": Rearrangement(torch.cumprod, _AXIS, _summed, flattens=True),
    "prod": Rearrangement(torch.prod, _AXIS, _summed),
    "sort": Rearrangement(torch.sort, {"axis": -1}, flattens=True),
    "diff": Rearrangement(torch.diff, {"n": 1, "axis": -1}),
    "repeat": Rearrangement(torch.repeat_interleave, {"repeats": ..., **_AXIS}),
    "roll": Rearrangement(torch.roll, {"shift": ..., **_AXIS}),
    "tile": Rearrangement(torch.tile, {"reps": ...}),
    "tril": Rearrangement(torch.tril, {"k": 0}),
    "triu": Rearrangement(torch.triu, {"k": 0}),
    "expand_dims": Rearrangement(torch.unsqueeze, {"axis": ...}, is_view=True),
    "squeeze": Rearrangement(torch.squeeze, _AXIS, is_view=True),
    "swapaxes": Rearrangement(torch.swapaxes, {"axis1": ..., "axis2": ...}, is_view=True),
    "moveaxis": Rearrangement(torch.moveaxis, {"source": ..., "destination": ...}, is_view=True),
}


def rearrangement(name: str, entry: Rearrangement) -> Callable[..., Value]:
    def handler(context: CaptureContext, a: Value, *args: Value, **kwargs: Value) -> Value:
        array = array_of(context, a, f"numpy.{name}", only_held=entry.is_view)
        bound = entry.parameters | dict(zip(entry.parameters, args, strict=False)) | kwargs
        if len(args) > len(entry.parameters) or len(bound) > len(entry.parameters):
            raise refused(context, f"numpy.{name} with options", [a])
        try:
            given = [plain(context, value) if isinstance(value, Value) else value for value in bound.values()]
        except NotConstant:
            raise refused(context, f"numpy.{name}", [a, *args]) from None
        dtype = entry.result_dtype(array.dtype)
        is_array_itself = entry.function is torch.diff and given[0] == 0
        if dtype is None or is_array_itself or not all(map(_are_whole, given)):
            raise refused(context, f"numpy.{name}", [a, *args])
        operand = cast_operand(context, array, dtype)
        if entry.function is torch.tile and type(given[0]) is int:
            given = [(given[0],)]
        if given[-1] is None:
            given[-1:] = [0] if entry.flattens else []
            if entry.flattens:
                operand = context.record_method("reshape", [operand, ConstantValue(-1)], {})
        made = context.record_function(entry.function, [operand, *map(context.known, given)], {})
        result = made if isinstance(made, TensorValue) else next(iter(context.iterate(made)))
        assert isinstance(result, TensorValue)
        if entry.function is torch.squeeze and result.fake.dim() == len(array.shape):
            if given:  # NumPy refuses a dimension that is not 1
                raise refused(context, f"numpy.{name}", [a, *args])
            return a
        if not entry.is_view:
            check_layout(context, result, [array], name)
        return checked(context, result, dtype, name, is_array=entry.is_view)

    return handler


def _are_whole(given: Any) -> bool:
    return given is None or type(given) is int or (type(given) is tuple and all(type(one) is int for one in given))


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
