"""Functions of NumPy and methods of its arrays, by NumPy's rules: reductions, shapes, selection, new arrays.
Element-wise functions are in array_operations.py, conversions from and to tensors in numpy_tensors.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, Source
from stator.dynamo.host.numpy_boundary import ARRAY, FOLLOWED, TORCH_OF, is_followed, numpy, shared_tensor
from stator.dynamo.interpreter.calling import calls, run_folded
from stator.dynamo.interpreter.wrapping import wrapper_of, wraps
from stator.dynamo.values.base import CaptureContext, NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, SequenceValue, TupleValue
from stator.dynamo.values.functions import BuiltinValue
from stator.dynamo.values.tensors.arrays import ArrayValue, array_methods, array_of_tensor, writers
from stator.dynamo.values.tensors.tensor import TensorValue

from .array_operations import (
    apply_elementwise,
    cast_operand,
    check_layout,
    checked,
    full,
    holds_array,
    matrix_product,
    operand_kind,
    refused,
    write,
)
from .numpy_arguments import array_of, cast, dtype_made, dtype_of, is_cast_alike, plain, whole_number
from .numpy_reductions import REARRANGEMENTS, REDUCTIONS, position, rearrangement, reduction, vector_norm

_MOST_LITERALS = 256  # elements that a graph spells out
# Functions that run during capture on constants. The graph spells out the array.
_OF_CONSTANTS = "zeros ones full arange linspace logspace eye identity argsort isclose tri"
_CPU = {"device": ConstantValue(torch.device("cpu"))}
writers.append(write)


# ---- arrays, dtypes and functions from outside ----


def _wrap_array(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if source is None or not is_followed(obj):
        return wrapper_of(object)(context, obj, source)
    context.guard(source, GuardKind.TYPE, ARRAY)
    on_memory = CallSource(shared_tensor, (source,))
    shared = shared_tensor(obj)
    assert shared is not None
    layout = context.recorder.numbers.inputs.layout(shared, on_memory)
    context.guards.tensor(on_memory, shared, torch.Tensor, layout)
    tensor = TensorValue(context.recorder.mode.from_real(shared, layout), None, on_memory, shared)
    return ArrayValue(context.recorder.wrap_input(tensor), source, obj, context=context)


def _wrap_dtype(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if obj.isbuiltin != 1 or obj.names is not None:
        return wrapper_of(object)(context, obj, source)
    if source is not None:
        context.guard(source, GuardKind.IS, obj)
    return ConstantValue(obj)


def _wrap_dispatcher(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if source is not None:
        context.guard(source, GuardKind.IS, obj)
    return BuiltinValue(obj, source)


if FOLLOWED:
    wraps(ARRAY)(_wrap_array)
    wraps(numpy.dtype)(_wrap_dtype)
    wraps(type(numpy.sum))(_wrap_dispatcher)


# ---- new arrays ----


def literal(context: CaptureContext, array: Any, what: str) -> Value:
    """A new array with known contents, which the graph makes in each call."""
    if array.dtype not in TORCH_OF or not array.size:
        raise unsupported("result", f"{what} is an array of dtype {array.dtype} with {array.size} elements")
    shape = tuple(array.shape)
    flat = array.reshape(-1)
    first = flat[0].item()
    if (flat == flat[0]).all() and not (first == 0 and numpy.signbit(flat.astype("f8")).any()):
        return array_of_tensor(context, full(context, shape, first, array.dtype))
    named: dict[str, Value] = {"dtype": ConstantValue(TORCH_OF[array.dtype]), **_CPU}
    if array.dtype.kind in "iu" and array.ndim == 1:
        step = flat[1].item() - first
        bounds = (first, first + step * len(flat), step)
        if step and numpy.array_equal(numpy.arange(*bounds, dtype=array.dtype), flat):
            return array_of_tensor(
                context, context.record_function(torch.arange, [ConstantValue(at) for at in bounds], named)
            )
    if array.size > _MOST_LITERALS or (array.dtype.kind == "f" and not numpy.isfinite(flat).all()):
        raise unsupported("result", f"{what} is an array of {array.size} elements, too many to spell out")
    return array_of_tensor(context, context.record_function(torch.tensor, [_listed(array.tolist())], named))


def _listed(items: Any) -> Value:
    return ListValue([_listed(item) for item in items]) if isinstance(items, list) else ConstantValue(items)


def _made_of_constants(function: Any) -> Callable[..., Value]:
    """A function of constants, which runs during capture."""
    name = f"numpy.{function.__name__}"

    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        try:
            real = tuple(plain(context, arg) for arg in args)
            named = {key: plain(context, arg) for key, arg in kwargs.items()}
        except NotConstant:
            raise refused(context, name, list(args)) from None
        result = context.run_real(function, real, named)
        if type(result) is ARRAY:
            return literal(context, result, f"the result of {name}")
        return context.wrap_result(result, f"the result of {name}")

    return handler


def _function(*functions: Any, method: str | None = None) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Decorator: the handler serves calls whose arguments hold an array. Calls with constants run during capture."""

    def decorate(handler: Callable[..., Value]) -> Callable[..., Value]:
        for function in functions:
            calls(function)(_by_arguments(function, handler))
        if method is not None:
            array_methods.add(method, handler)
        return handler

    return decorate


def _by_arguments(function: Any, handler: Callable[..., Value]) -> Callable[..., Value]:
    otherwise = _made_of_constants(function)

    def answer(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        if any(map(holds_array, [*args, *kwargs.values()])):
            return context.call_handler(handler, list(args), kwargs)
        return otherwise(context, *args, **kwargs)

    answer.__name__ = function.__name__
    return answer


def _refusing_arrays(name: str) -> Callable[..., Value]:
    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        raise refused(context, f"numpy.{name}", list(args))

    handler.__name__ = name
    return handler


def _elementwise(ufunc: Any) -> None:
    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        if not any(map(holds_array, [*args, *kwargs.values()])):
            return run_folded(context, ufunc, list(args), kwargs)
        if kwargs:
            raise refused(context, f"numpy.{ufunc.__name__} with options", list(args))
        return apply_elementwise(context, ufunc, list(args))

    calls(ufunc)(handler)


def _register_functions() -> None:
    for ufunc in {one for one in vars(numpy).values() if isinstance(one, numpy.ufunc)}:
        if ufunc is not numpy.matmul:
            _elementwise(ufunc)
    calls(numpy.dtype)(dtype_made)
    for name, entry in REDUCTIONS.items():
        functions = {getattr(numpy, name), getattr(numpy, "a" + name, getattr(numpy, name))}  # numpy.amax is no alias
        _function(*functions, method=name)(reduction(name, *entry))
    for name, moved in REARRANGEMENTS.items():
        method = name if name != "sort" and hasattr(ARRAY, name) else None  # ndarray.sort works in place
        _function(getattr(numpy, name), method=method)(rearrangement(name, moved))
    _function(numpy.linalg.norm)(vector_norm)
    _function(numpy.around)(_round)
    for name, function in _FUNCTIONS.items():
        _function(getattr(numpy, name), method=name if name in _ALSO_METHODS else None)(function)
    for function in (numpy.zeros_like, numpy.ones_like, numpy.full_like):
        calls(function)(_like(function))
    for name in _OF_CONSTANTS.split():
        _function(getattr(numpy, name))(_refusing_arrays(name))


def _like(function: Any) -> Callable[..., Value]:
    """numpy.zeros_like and the like, also of tensors. NumPy makes the result for an array of this form."""
    otherwise = _made_of_constants(function)

    def handler(context: CaptureContext, a: Value, *args: Value, **kwargs: Value) -> Value:
        if isinstance(a, TensorValue):
            a = context.call_tensor_method(a, "numpy", [], {})
        if not isinstance(a, ArrayValue) or a.scalar:
            return otherwise(context, a, *args, **kwargs)
        if not a.tensor.fake.is_contiguous():  # NumPy keeps the order of dimensions
            raise refused(context, f"numpy.{function.__name__}", [a])
        return otherwise(context, ConstantValue(numpy.broadcast_to(a.dtype.type(), a.shape)), *args, **kwargs)

    handler.__name__ = function.__name__
    return handler


# ---- shapes ----


def _reshape(context: CaptureContext, a: Value, *shape: Value) -> Value:
    array = array_of(context, a, "numpy.reshape", only_held=True)
    sizes = shape[0].items if len(shape) == 1 and isinstance(shape[0], SequenceValue) else list(shape)
    whole = tuple(whole_number(context, context.realized(size)) for size in sizes)
    return array_of_tensor(context, context.record_method("reshape", [array.tensor, context.known(whole)], {}))


def _ravel(context: CaptureContext, a: Value) -> Value:
    array = array_of(context, a, "numpy.ravel", only_held=True)
    packed = context.record_method("contiguous", [array.tensor], {})
    return array_of_tensor(context, context.record_method("view", [packed, ConstantValue(-1)], {}))


def _flatten(context: CaptureContext, a: Value) -> Value:
    return _ravel(context, _copy(context, a))


def _copy(context: CaptureContext, a: Value) -> Value:
    array = array_of(context, a, "ndarray.copy", only_held=True)
    c_order = ConstantValue(torch.contiguous_format)
    return array_of_tensor(context, context.record_method("clone", [array.tensor], {"memory_format": c_order}))


def _transpose(context: CaptureContext, a: Value, *axes: Value) -> Value:
    array = array_of(context, a, "numpy.transpose", only_held=True)
    order: Any = axes[0].items if len(axes) == 1 and isinstance(axes[0], SequenceValue) else list(axes)
    if len(order) == 1 and context.is_none(order[0]):
        order = []
    whole = (
        tuple(whole_number(context, context.realized(axis)) for axis in order) or tuple(range(len(array.shape)))[::-1]
    )
    return array_of_tensor(context, context.record_method("permute", [array.tensor, context.known(whole)], {}))


# ---- several arrays ----


def _common(context: CaptureContext, values: list[Value], what: str) -> tuple[list[Value], Any]:
    """The tensors of arrays, cast to their common dtype."""
    arrays = [array_of(context, value, what) for value in values]
    dtype = numpy.result_type(*(array.dtype for array in arrays))
    if dtype not in TORCH_OF:
        raise refused(context, what, values)
    return [cast_operand(context, array, dtype) for array in arrays], dtype


def _joined(name: str, function: Any, takes_axis: bool = True) -> Callable[..., Value]:
    def handler(context: CaptureContext, arrays: Value, axis: Value | None = None) -> Value:
        given = list(context.iterate(arrays))
        if axis is not None and not takes_axis:
            raise refused(context, f"numpy.{name} with options", given)
        tensors, dtype = _common(context, given, f"numpy.{name}")
        at = [ConstantValue(0 if axis is None else whole_number(context, axis))] if takes_axis else []
        joined = context.record_function(function, [TupleValue(tensors), *at], {})
        check_layout(context, joined, given, name)
        return checked(context, joined, dtype, name, True)

    return handler


def _where(context: CaptureContext, condition: Value, x: Value, y: Value) -> Value:
    if not isinstance(condition, ArrayValue) or condition.dtype.kind != "b":
        raise refused(context, "numpy.where", [condition])
    kinds = [operand_kind(context, value) for value in (x, y)]
    plain = [kind is int or kind is float for kind in kinds]
    if all(plain):
        dtype = numpy.dtype("float64" if any(kind is float for kind in kinds) else "int64")
    else:  # Python's numbers adapt to the other operand
        dtype = numpy.result_type(*(kind(0) if adapts else kind for kind, adapts in zip(kinds, plain, strict=True)))
    if dtype not in TORCH_OF:
        raise refused(context, "numpy.where", [condition, x, y])
    operands = [condition.tensor, *(cast_operand(context, value, dtype) for value in (x, y))]
    selected = context.record_function(torch.where, operands, {})
    check_layout(context, selected, [condition, x, y], "where", each=True)
    return checked(context, selected, dtype, "where", is_array=True)


def _clip(context: CaptureContext, a: Value, a_min: Value, a_max: Value) -> Value:
    if context.is_none(a_min) and context.is_none(a_max):
        raise refused(context, "numpy.clip without bounds", [a])
    for bound, ufunc in ((a_min, numpy.maximum), (a_max, numpy.minimum)):
        if not context.is_none(bound):
            a = apply_elementwise(context, ufunc, [a, bound])
    return a


def _dot(context: CaptureContext, a: Value, b: Value) -> Value:
    for array in (a, b):
        if len(array_of(context, array, "numpy.dot").shape) > 2:
            raise refused(context, "numpy.dot", [a, b])
    return matrix_product(context, a, b)


def _round(context: CaptureContext, a: Value, decimals: Value | None = None) -> Value:
    array = array_of(context, a, "numpy.round")
    if array.dtype.kind != "f" or (decimals is not None and whole_number(context, decimals) != 0):
        raise refused(context, "numpy.round", [a])
    return apply_elementwise(context, numpy.rint, [a])


# ---- conversions ----


def _astype(context: CaptureContext, a: Value, dtype: Value) -> Value:
    if not isinstance(a, ArrayValue):
        raise refused(context, "ndarray.astype", [a])
    wanted = dtype_of(context, dtype)
    if wanted is None:
        raise refused(context, "ndarray.astype", [a, dtype])
    if wanted != a.dtype and not is_cast_alike(a.dtype, wanted):
        raise refused(context, f"a cast to {wanted}", [a])
    return array_of_tensor(context, _copied_as(context, a, wanted, "ndarray.astype"), scalar=a.scalar)


def _copied_as(context: CaptureContext, a: ArrayValue, wanted: Any, what: str) -> Value:
    copied = context.record_method("clone", [a.tensor], {}) if wanted == a.dtype else cast(context, a, wanted, what)
    check_layout(context, copied, [a], what.removeprefix("numpy."), each=True)
    return copied


def _new_array(context: CaptureContext, a: Value, dtype: Value | None = None) -> Value:
    """numpy.array of an array: always a copy."""
    if not isinstance(a, ArrayValue):
        raise refused(context, "numpy.array", [a])
    wanted = dtype_of(context, dtype) or a.dtype
    return array_of_tensor(context, _copied_as(context, a, wanted, "numpy.array"))


def _as_array(context: CaptureContext, a: Value, dtype: Value | None = None) -> Value:
    """numpy.asarray of an array: the array itself, unless another dtype is given."""
    wanted = dtype_of(context, dtype)
    if isinstance(a, ArrayValue) and not a.scalar and (wanted is None or wanted == a.dtype):
        return a
    return _new_array(context, a, dtype)


def _item(context: CaptureContext, a: Value) -> Value:
    assert isinstance(a, ArrayValue)
    return context.call_tensor_method(a.tensor, "item", [], {})


def _to_list(context: CaptureContext, a: Value) -> Value:
    assert isinstance(a, ArrayValue)
    return context.call_tensor_method(a.tensor, "tolist", [], {})


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "argmax": position("argmax", torch.argmax),
    "argmin": position("argmin", torch.argmin),
    "reshape": _reshape,
    "ravel": _ravel,
    "transpose": _transpose,
    "matmul": matrix_product,
    "concatenate": _joined("concatenate", torch.cat),
    "stack": _joined("stack", torch.stack),
    "hstack": _joined("hstack", torch.hstack, takes_axis=False),
    "vstack": _joined("vstack", torch.vstack, takes_axis=False),
    "clip": _clip,
    "dot": _dot,
    "round": _round,
    "where": _where,
    "array": _new_array,
    "asarray": _as_array,
}
_ALSO_METHODS = {"argmax", "argmin", "reshape", "ravel", "transpose", "clip", "dot", "round"}
_METHODS: dict[str, Callable[..., Value]] = {
    "copy": _copy,
    "flatten": _flatten,
    "astype": _astype,
    "item": _item,
    "tolist": _to_list,
}
for _name, _method in _METHODS.items():
    array_methods.add(_name, _method)
if FOLLOWED:
    _register_functions()
