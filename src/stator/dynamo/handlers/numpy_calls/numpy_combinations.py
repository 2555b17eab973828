"""Functions of NumPy that are combinations of others (handlers/polyfills/numpy_module.py): for arguments for which that
is all
they do; for any other they end the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stator.dynamo.handlers.polyfills import numpy_module
from stator.dynamo.host.numpy_boundary import numpy
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.tensors.arrays import ArrayValue

from .array_operations import or_native, refused
from .numpy_native import name_of

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext

Fits = Callable[["CaptureContext", list[Value], dict[str, Value]], bool]
_MOST_COPIES = 64  # that a graph spells out


def _is_array(value: Value, dims: int | None = None) -> bool:
    known = isinstance(value, ArrayValue) and not value.scalar and value.shape
    return bool(known) and (dims is None or len(value.shape) == dims)  # type: ignore[attr-defined]


def _is_small(context: CaptureContext, value: Value) -> bool:
    return value.is_constant() and type(value.constant()) is int and 0 < value.constant() <= _MOST_COPIES


def _of_arrays(dims: int | None, count: int) -> Fits:
    def fits(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> bool:
        return not kwargs and len(args) == count and all(_is_array(arg, dims) for arg in args)

    return fits


def _of_row_and_count(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> bool:
    return not kwargs and len(args) == 2 and _is_array(args[0], 1) and _is_small(context, args[1])


def _of_row_and_whole(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> bool:
    plain = not kwargs and len(args) == 2 and _is_array(args[0], 1)
    return plain and args[1].is_constant() and type(args[1].constant()) is int


def _of_listed(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> bool:
    if kwargs or len(args) != 1 or not isinstance(args[0], SequenceValue):
        return False
    items = list(context.iterate(args[0]))
    same = {len(item.shape) for item in items if isinstance(item, ArrayValue)}
    return bool(items) and all(map(_is_array, items)) and len(same) == 1


def _of_axes(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> bool:
    indexing = kwargs.get("indexing")
    known = indexing is None or (indexing.is_constant() and indexing.constant() in ("xy", "ij"))
    if not known or not kwargs.keys() <= {"indexing"} or not args:
        return False
    return all(_is_array(arg, 1) and arg.shape[0] <= _MOST_COPIES for arg in args)  # type: ignore[attr-defined]


def _of_split(least: int, has_axis: bool) -> Fits:
    """An array of so many dimensions, a number of pieces or the places between them, and perhaps an axis."""

    def fits(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> bool:
        named = dict(zip(("ary", "indices_or_sections", "axis"), args, strict=False)) | kwargs
        if len(args) > 2 + has_axis or not {"ary", "indices_or_sections"} <= named.keys():
            return False
        array, pieces = named["ary"], context.realized(named["indices_or_sections"])
        if not isinstance(array, ArrayValue) or not _is_array(array) or len(array.shape) < least:
            return False
        if "axis" in named and not (has_axis and _are_axes(array, [named["axis"]])):
            return False
        if isinstance(pieces, SequenceValue):
            places = [item.constant() for item in pieces.items if item.is_constant()]
            whole = len(places) == len(pieces.items) and all(type(place) is int and place >= 0 for place in places)
            return whole and places == sorted(places)
        return _is_small(context, pieces)

    return fits


def _are_axes(array: ArrayValue, axes: list[Value]) -> bool:
    found = [axis.constant() if axis.is_constant() else None for axis in axes]
    return all(type(axis) is int and -len(array.shape) <= axis < len(array.shape) for axis in found)


def _of_moved(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> bool:
    return not kwargs and len(args) == 3 and _is_array(args[0]) and _are_axes(args[0], args[1:])  # type: ignore[arg-type]


def _of_vectors(context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """A norm of vectors, or the Frobenius one, of floats."""
    named = dict(zip(("x", "ord", "axis"), args, strict=False)) | kwargs
    array = named.get("x")
    if len(args) > 3 or not named.keys() <= {"x", "ord", "axis"} or not isinstance(array, ArrayValue):
        return False
    kind, axis = named.get("ord"), named.get("axis")
    if not _is_array(array) or array.dtype.kind != "f" or (kind is not None and not kind.is_constant()):
        return False
    wanted = None if kind is None else kind.constant()
    alone = axis is None or context.is_none(axis)
    if not alone and not (axis.is_constant() and type(axis.constant()) is int):  # type: ignore[union-attr]
        return False
    if wanted is None:
        return True
    return (not alone or len(array.shape) == 1) and wanted in (1, 2, numpy.inf)


def _register(function: Any, replacement: Callable[..., Any], fits: Fits) -> None:
    def followed(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        if not fits(context, [context.realized(arg) for arg in args], kwargs):
            raise refused(context, f"numpy.{function.__name__}", [*args, *kwargs.values()])
        return context.call(context.known(replacement), list(args), kwargs)

    name = name_of(function)
    calls(function)(followed if name is None else or_native(name, followed))


def register() -> None:
    for function, replacement, fits in (
        (numpy.outer, numpy_module.outer, _of_arrays(1, 2)),
        (numpy.diff, numpy_module.diff, _of_arrays(1, 1)),
        (numpy.vstack, numpy_module.vstack, _of_listed),
        (numpy.hstack, numpy_module.hstack, _of_listed),
        (numpy.roll, numpy_module.roll, _of_row_and_whole),
        (numpy.tile, numpy_module.tile, _of_row_and_count),
        (numpy.repeat, numpy_module.repeat, _of_row_and_count),
        (numpy.meshgrid, numpy_module.meshgrid, _of_axes),
        (numpy.linalg.norm, numpy_module.norm, _of_vectors),
        (numpy.split, numpy_module.split, _of_split(1, True)),
        (numpy.array_split, numpy_module.array_split, _of_split(1, True)),
        (numpy.hsplit, numpy_module.hsplit, _of_split(1, False)),
        (numpy.vsplit, numpy_module.vsplit, _of_split(2, False)),
        (numpy.moveaxis, numpy_module.moveaxis, _of_moved),
        (numpy.atleast_1d, numpy_module.atleast_1d, _of_arrays(None, 1)),
        (numpy.atleast_2d, numpy_module.atleast_2d, _of_arrays(None, 1)),
        (numpy.atleast_3d, numpy_module.atleast_3d, _of_arrays(None, 1)),
    ):
        _register(function, replacement, fits)
