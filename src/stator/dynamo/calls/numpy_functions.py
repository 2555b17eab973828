"""Functions of NumPy and methods of its arrays, by NumPy's rules: reductions, shapes, selection, new arrays.
Element-wise functions are in array_operations.py, the way to tensors and back in numpy_tensors.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..array_operations import (
    ELEMENTWISE,
    apply_elementwise,
    cast_operand,
    checked,
    full,
    matrix_product,
    note_layout,
    operand_kind,
    refused,
    write,
)
from ..calling import calls, run_folded
from ..guard import GuardKind
from ..numpy_boundary import ARRAY, FOLLOWED, TORCH_OF, is_followed, numpy, shared_tensor
from ..source import CallSource
from ..values.arrays import ArrayValue, array_methods, made, writers
from ..values.base import NotConstant, Value, unsupported
from ..values.classes import ClassValue
from ..values.constants import ConstantValue
from ..values.functions import BuiltinValue
from ..values.sequences import ListValue, SequenceValue, TupleValue
from ..values.tensors import TensorValue
from ..wrapping import wrapper_of, wraps

if TYPE_CHECKING:
    from ..source import Source
    from ..tracer import Tracer

_MOST_LITERALS = 256  # elements that a graph spells out
_CPU = {"device": ConstantValue(torch.device("cpu"))}
writers.append(write)


# ---- arrays, dtypes and functions found in the program ----


def _wrap_array(tracer: Tracer, obj: Any, source: Source | None) -> Value:
    if source is None or not is_followed(obj):
        return wrapper_of(object)(tracer, obj, source)
    tracer.guard(source, GuardKind.TYPE, ARRAY)
    on_memory = CallSource(shared_tensor, (source,))
    shared = shared_tensor(obj)
    assert shared is not None
    tracer.guards.tensor(on_memory, shared)
    tensor = TensorValue(tracer.recorder.mode.from_real(shared), None, on_memory, shared)
    return ArrayValue(tracer.recorder.wrap_input(tensor), source, obj)


def _wrap_dtype(tracer: Tracer, obj: Any, source: Source | None) -> Value:
    if obj.isbuiltin != 1 or obj.names is not None:
        return wrapper_of(object)(tracer, obj, source)
    if source is not None:
        tracer.guard(source, GuardKind.IS, obj)
    return ConstantValue(obj)


def _wrap_dispatcher(tracer: Tracer, obj: Any, source: Source | None) -> Value:
    if source is not None:
        tracer.guard(source, GuardKind.IS, obj)
    return BuiltinValue(obj, source)


if FOLLOWED:
    wraps(ARRAY)(_wrap_array)
    wraps(numpy.dtype)(_wrap_dtype)
    wraps(type(numpy.sum))(_wrap_dispatcher)


# ---- arguments ----


def _array(tracer: Tracer, value: Value, what: str) -> ArrayValue:
    if not isinstance(value, ArrayValue) or value.scalar or not value.shape:
        raise refused(tracer, what, [value])
    return value


def _plain(tracer: Tracer, value: Value) -> Any:
    """A constant, also in lists; what functions that only make arrays are called with. Raises NotConstant."""
    value = tracer.realized(value)
    if isinstance(value, ListValue) and value.cls is list:
        return [_plain(tracer, item) for item in value.items]
    if isinstance(value, TupleValue):
        return tuple(_plain(tracer, item) for item in value.items)
    if isinstance(value, ClassValue):
        return value.cls
    return value.constant()


def _dtype(tracer: Tracer, value: Value | None) -> Any:
    """A dtype that was asked for, or None."""
    if value is None or tracer.is_none(value):
        return None
    try:
        return numpy.dtype(_plain(tracer, value))
    except (NotConstant, TypeError):
        raise refused(tracer, "numpy.dtype", [value]) from None


def _dtype_made(tracer: Tracer, dtype: Value) -> Value:
    return ConstantValue(_dtype(tracer, dtype) or numpy.dtype(None))


def _whole(tracer: Tracer, value: Value) -> int:
    found = tracer.constant_of(value, "an axis or size")
    if type(found) is not int:
        raise refused(tracer, "an axis or size", [value])
    return found


def _axes(tracer: Tracer, axis: Value | None, array: ArrayValue) -> tuple[int, ...]:
    """Which dimensions to reduce."""
    if axis is None or tracer.is_none(axis):
        return tuple(range(len(array.shape)))
    if isinstance(axis, TupleValue):
        return tuple(_whole(tracer, item) for item in axis.items)
    return (_whole(tracer, axis),)


def _flag(tracer: Tracer, value: Value | None) -> bool:
    return value is not None and tracer.truth(value)


def _cast(tracer: Tracer, array: ArrayValue, dtype: Any, what: str) -> Value:
    """The tensor of an array in another dtype; a copy is made only if that is a change."""
    if dtype not in TORCH_OF or (array.dtype.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 4):
        raise refused(tracer, f"{what} to {dtype}", [array])
    if array.dtype.kind == "f" and dtype.kind == "u":
        raise refused(tracer, f"{what} to {dtype}", [array])
    return cast_operand(tracer, array, dtype)


# ---- new arrays ----


def literal(tracer: Tracer, array: Any, what: str) -> Value:
    """A new array with known contents, made anew in each call."""
    if array.dtype not in TORCH_OF or not array.size:
        raise unsupported("result", f"{what} is an array of dtype {array.dtype} with {array.size} elements")
    shape = tuple(array.shape)
    flat = array.reshape(-1)
    first = flat[0].item()
    if (flat == flat[0]).all() and not (first == 0 and numpy.signbit(flat.astype("f8")).any()):
        return made(tracer, full(tracer, shape, first, array.dtype))
    named: dict[str, Value] = {"dtype": ConstantValue(TORCH_OF[array.dtype]), **_CPU}
    if array.dtype.kind in "iu" and array.ndim == 1:
        step = flat[1].item() - first
        bounds = (first, first + step * len(flat), step)
        if step and numpy.array_equal(numpy.arange(*bounds, dtype=array.dtype), flat):
            return made(tracer, tracer.record_function(torch.arange, [ConstantValue(at) for at in bounds], named))
    if array.size > _MOST_LITERALS or (array.dtype.kind == "f" and not numpy.isfinite(flat).all()):
        raise unsupported("result", f"{what} is an array of {array.size} elements that are no simple sequence")
    return made(tracer, tracer.record_function(torch.tensor, [_listed(array.tolist())], named))


def _listed(items: Any) -> Value:
    return ListValue([_listed(item) for item in items]) if isinstance(items, list) else ConstantValue(items)


def _made_of_constants(function: Any) -> Callable[..., Value]:
    """A function that makes an array out of constants: called while capturing, and what it gave is spelled out."""
    name = f"numpy.{function.__name__}"

    def handler(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        try:
            real = tuple(_plain(tracer, arg) for arg in args)
            named = {key: _plain(tracer, arg) for key, arg in kwargs.items()}
        except NotConstant:
            raise refused(tracer, name, list(args)) from None
        result = tracer.run_real(function, real, named)
        if type(result) is ARRAY:
            return literal(tracer, result, f"the result of {name}")
        return tracer.wrap_result(result, f"the result of {name}")

    return handler


def _function(*functions: Any, method: str | None = None) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Decorator: the handler answers where the first argument is (or holds) an array; constants are computed."""

    def decorate(handler: Callable[..., Value]) -> Callable[..., Value]:
        for function in functions:
            calls(function)(_either(function, handler))
        if method is not None:
            array_methods.add(method, handler)
        return handler

    return decorate


def _either(function: Any, handler: Callable[..., Value]) -> Callable[..., Value]:
    otherwise = _made_of_constants(function)

    def answer(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        if any(map(_holds_array, args)):
            return tracer.call_handler(handler, list(args), kwargs)
        return otherwise(tracer, *args, **kwargs)

    answer.__name__ = function.__name__
    return answer


def _holds_array(value: Value) -> bool:
    if isinstance(value, SequenceValue):
        return any(map(_holds_array, value.items))
    return isinstance(value, ArrayValue)


def _elementwise(ufunc: Any) -> None:
    def handler(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        if any(isinstance(arg, ArrayValue) for arg in args) and not kwargs:
            return apply_elementwise(tracer, ufunc, list(args))
        return run_folded(tracer, ufunc, list(args), kwargs)

    calls(ufunc)(handler)


def _register_functions() -> None:
    for ufunc in ELEMENTWISE:
        _elementwise(ufunc)
    for name in ("zeros", "ones", "full", "arange", "linspace", "eye", "identity", "logspace", "prod"):
        function = getattr(numpy, name)
        calls(function)(_made_of_constants(function))
    calls(numpy.dtype)(_dtype_made)
    for name, entry in _REDUCTIONS.items():
        function = getattr(numpy, name)
        _function(function, method=name)(_reduction(name, *entry))
    for name, function in _FUNCTIONS.items():
        _function(getattr(numpy, name), method=name if name in _ALSO_METHODS else None)(function)


# ---- reductions ----


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


_REDUCTIONS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "sum": (torch.sum, _summed),
    "mean": (torch.mean, _averaged),
    "max": (torch.amax, _same),
    "min": (torch.amin, _same),
    "any": (torch.any, _truth),
    "all": (torch.all, _truth),
}


def _reduction(name: str, function: Any, dtype_of: Callable[[Any], Any]) -> Callable[..., Value]:
    def handler(tracer: Tracer, a: Value, axis: Value | None = None, *, keepdims: Value | None = None) -> Value:
        array = _array(tracer, a, f"numpy.{name}")
        dtype = dtype_of(array.dtype)
        if dtype is None:
            raise refused(tracer, f"numpy.{name}", [a])
        operand = cast_operand(tracer, array, dtype)
        dims = tracer.known(_axes(tracer, axis, array))
        keep = ConstantValue(_flag(tracer, keepdims))
        return checked(tracer, tracer.record_function(function, [operand, dims, keep], {}), dtype, name)

    return handler


def _deviation(name: str, function: Any) -> Callable[..., Value]:
    def handler(
        tracer: Tracer,
        a: Value,
        axis: Value | None = None,
        *,
        ddof: Value | None = None,
        keepdims: Value | None = None,
    ) -> Value:
        array = _array(tracer, a, f"numpy.{name}")
        dtype = _averaged(array.dtype)
        axes = _axes(tracer, axis, array)
        correction = 0 if ddof is None else _whole(tracer, ddof)
        if not all(-len(array.shape) <= at < len(array.shape) for at in axes):
            raise refused(tracer, f"numpy.{name} over such an axis", [a])
        if math.prod(array.shape[at] for at in axes) <= correction:
            raise refused(tracer, f"numpy.{name} of as few elements", [a])
        named: dict[str, Value] = {
            "correction": ConstantValue(correction),
            "keepdim": ConstantValue(_flag(tracer, keepdims)),
        }
        operand = cast_operand(tracer, array, dtype)
        return checked(tracer, tracer.record_function(function, [operand, tracer.known(axes)], named), dtype, name)

    return handler


def _position(name: str, function: Any) -> Callable[..., Value]:
    def handler(tracer: Tracer, a: Value, axis: Value | None = None) -> Value:
        array = _array(tracer, a, f"numpy.{name}")
        if array.dtype.kind == "b":
            raise refused(tracer, f"numpy.{name}", [a])
        note_layout(tracer, array)
        dims = [] if axis is None or tracer.is_none(axis) else [ConstantValue(_whole(tracer, axis))]
        found = tracer.record_function(function, [array.tensor, *dims], {})
        return checked(tracer, found, numpy.dtype("int64"), name)

    return handler


def _running(name: str, function: Any) -> Callable[..., Value]:
    def handler(tracer: Tracer, a: Value, axis: Value | None = None) -> Value:
        array = _array(tracer, a, f"numpy.{name}")
        dtype = _summed(array.dtype)
        if dtype is None:
            raise refused(tracer, f"numpy.{name}", [a])
        operand = cast_operand(tracer, array, dtype)
        if axis is None or tracer.is_none(axis):
            operand, axis = tracer.record_method("flatten", [operand], {}), ConstantValue(0)
        return checked(
            tracer, tracer.record_function(function, [operand, ConstantValue(_whole(tracer, axis))], {}), dtype, name
        )

    return handler


# ---- shapes ----


def _reshape(tracer: Tracer, a: Value, *shape: Value) -> Value:
    array = _array(tracer, a, "numpy.reshape")
    sizes = shape[0].items if len(shape) == 1 and isinstance(shape[0], SequenceValue) else list(shape)
    whole = tuple(_whole(tracer, tracer.realized(size)) for size in sizes)
    _known_layout(tracer, array)
    return made(tracer, tracer.record_method("reshape", [array.tensor, tracer.known(whole)], {}))


def _known_layout(tracer: Tracer, array: ArrayValue) -> None:
    """Whether the result is a view depends on the layout, which must be NumPy's: that of an input is."""
    storage = array.tensor.fake.fake_storage  # type: ignore[attr-defined]
    if not tracer.unlike_layouts or len(array.shape) < 2 or array.obj is not None:
        return
    if not any(value.fake.fake_storage is storage for value in tracer.recorder.input_values):  # type: ignore[attr-defined]
        raise refused(tracer, "reshaping", [array])


def _ravel(tracer: Tracer, a: Value) -> Value:
    array = _array(tracer, a, "numpy.ravel")
    _known_layout(tracer, array)
    packed = tracer.record_method("contiguous", [array.tensor], {})
    return made(tracer, tracer.record_method("view", [packed, ConstantValue(-1)], {}))


def _copied(tracer: Tracer, array: ArrayValue) -> Value:
    return tracer.record_method("clone", [array.tensor], {"memory_format": ConstantValue(torch.contiguous_format)})


def _flatten(tracer: Tracer, a: Value) -> Value:
    copied = _copied(tracer, _array(tracer, a, "ndarray.flatten"))
    return made(tracer, tracer.record_method("view", [copied, ConstantValue(-1)], {}))


def _copy(tracer: Tracer, a: Value) -> Value:
    return made(tracer, _copied(tracer, _array(tracer, a, "ndarray.copy")))


def _copy_as_it_lies(tracer: Tracer, a: Value) -> Value:
    """numpy.copy keeps the layout, where the method makes it C order."""
    note_layout(tracer, _array(tracer, a, "numpy.copy"))
    return _copy(tracer, a)


def _transpose(tracer: Tracer, a: Value, *axes: Value) -> Value:
    array = _array(tracer, a, "numpy.transpose")
    order: Any = axes[0].items if len(axes) == 1 and isinstance(axes[0], SequenceValue) else list(axes)
    if len(order) == 1 and tracer.is_none(order[0]):
        order = []
    whole = tuple(_whole(tracer, tracer.realized(axis)) for axis in order) or tuple(range(len(array.shape)))[::-1]
    return made(tracer, tracer.record_method("permute", [array.tensor, tracer.known(whole)], {}))


def _swapaxes(tracer: Tracer, a: Value, axis1: Value, axis2: Value) -> Value:
    array = _array(tracer, a, "numpy.swapaxes")
    dims = [ConstantValue(_whole(tracer, axis)) for axis in (axis1, axis2)]
    return made(tracer, tracer.record_method("transpose", [array.tensor, *dims], {}))


def _expand_dims(tracer: Tracer, a: Value, axis: Value) -> Value:
    array = _array(tracer, a, "numpy.expand_dims")
    at = ConstantValue(_whole(tracer, axis))
    return made(tracer, tracer.record_method("unsqueeze", [array.tensor, at], {}))


def _squeeze(tracer: Tracer, a: Value, axis: Value | None = None) -> Value:
    array = _array(tracer, a, "numpy.squeeze")
    dims = []
    if axis is not None and not tracer.is_none(axis):
        at = _whole(tracer, axis)
        if not -len(array.shape) <= at < len(array.shape) or array.shape[at] != 1:
            raise refused(tracer, "numpy.squeeze of another axis", [a])
        dims = [ConstantValue(at)]
    return made(tracer, tracer.record_method("squeeze", [array.tensor, *dims], {}))


# ---- several arrays ----


def _common(tracer: Tracer, values: list[Value], what: str) -> tuple[list[Value], Any]:
    """Tensors of arrays in the dtype that they have in common."""
    arrays = [_array(tracer, value, what) for value in values]
    dtype = numpy.result_type(*(array.dtype for array in arrays))
    if dtype not in TORCH_OF:
        raise refused(tracer, what, values)
    return [cast_operand(tracer, array, dtype) for array in arrays], dtype


def _joined(name: str, function: Any) -> Callable[..., Value]:
    def handler(tracer: Tracer, arrays: Value, axis: Value | None = None) -> Value:
        tensors, dtype = _common(tracer, list(tracer.iterate(arrays)), f"numpy.{name}")
        at = ConstantValue(0 if axis is None else _whole(tracer, axis))
        return checked(tracer, tracer.record_function(function, [TupleValue(tensors), at], {}), dtype, name, True)

    return handler


def _where(tracer: Tracer, condition: Value, x: Value, y: Value) -> Value:
    if not isinstance(condition, ArrayValue) or condition.dtype.kind != "b":
        raise refused(tracer, "numpy.where", [condition])
    kinds = [operand_kind(tracer, value) for value in (x, y)]
    plain = [kind is int or kind is float for kind in kinds]
    if all(plain):
        dtype = numpy.dtype("float64" if any(kind is float for kind in kinds) else "int64")
    else:  # Python's numbers adapt to the other operand
        dtype = numpy.result_type(*(kind(0) if adapts else kind for kind, adapts in zip(kinds, plain, strict=True)))
    if dtype not in TORCH_OF:
        raise refused(tracer, "numpy.where", [condition, x, y])
    note_layout(tracer, condition)
    operands = [condition.tensor, *(cast_operand(tracer, value, dtype) for value in (x, y))]
    return checked(tracer, tracer.record_function(torch.where, operands, {}), dtype, "where", is_array=True)


def _clip(tracer: Tracer, a: Value, low: Value | None = None, high: Value | None = None) -> Value:
    result: Value = _array(tracer, a, "numpy.clip")
    bounds = [bound for bound in (low, high) if bound is not None and not tracer.is_none(bound)]
    if not bounds or result.dtype.kind == "b":  # type: ignore[attr-defined]
        raise refused(tracer, "numpy.clip", [a])
    for bound, ufunc in ((low, numpy.maximum), (high, numpy.minimum)):
        if bound is not None and not tracer.is_none(bound):
            result = apply_elementwise(tracer, ufunc, [result, bound])
    return result


def _dot(tracer: Tracer, a: Value, b: Value) -> Value:
    left, right = _array(tracer, a, "numpy.dot"), _array(tracer, b, "numpy.dot")
    if len(left.shape) > 2 or len(right.shape) > 2:
        raise refused(tracer, "numpy.dot of more than two dimensions", [a, b])
    return matrix_product(tracer, left, right)


def _like(number: int) -> Callable[..., Value]:
    def handler(tracer: Tracer, a: Value, dtype: Value | None = None) -> Value:
        array = _array(tracer, a, "numpy.zeros_like")
        note_layout(tracer, array)
        wanted = _dtype(tracer, dtype) or array.dtype
        if wanted not in TORCH_OF:
            raise refused(tracer, f"an array of {wanted} like", [a])
        return made(tracer, full(tracer, array.shape, wanted.type(number).item(), wanted))

    return handler


# ---- conversions ----


def _astype(tracer: Tracer, a: Value, dtype: Value) -> Value:
    if not isinstance(a, ArrayValue):
        raise refused(tracer, "ndarray.astype", [a])
    note_layout(tracer, a)
    wanted = _dtype(tracer, dtype)
    if wanted is None:
        raise refused(tracer, "ndarray.astype", [a, dtype])
    cast = a.tensor if wanted == a.dtype else _cast(tracer, a, wanted, "ndarray.astype")
    copied = tracer.record_method("clone", [cast], {}) if cast is a.tensor else cast
    return made(tracer, copied, scalar=a.scalar)


def _new_array(tracer: Tracer, a: Value, dtype: Value | None = None) -> Value:
    """numpy.array of an array: always a copy."""
    if not isinstance(a, ArrayValue):
        raise refused(tracer, "numpy.array", [a])
    note_layout(tracer, a)
    wanted = _dtype(tracer, dtype) or a.dtype
    cast = a.tensor if wanted == a.dtype else _cast(tracer, a, wanted, "numpy.array")
    return made(tracer, tracer.record_method("clone", [cast], {}) if cast is a.tensor else cast)


def _as_array(tracer: Tracer, a: Value, dtype: Value | None = None) -> Value:
    """numpy.asarray of an array: itself, unless its dtype is another one."""
    wanted = _dtype(tracer, dtype)
    if isinstance(a, ArrayValue) and not a.scalar and (wanted is None or wanted == a.dtype):
        return a
    return _new_array(tracer, a, dtype)


def _item(tracer: Tracer, a: Value) -> Value:
    assert isinstance(a, ArrayValue)
    return tracer.call_tensor_method(a.tensor, "item", [], {})


def _to_list(tracer: Tracer, a: Value) -> Value:
    assert isinstance(a, ArrayValue)
    return tracer.call_tensor_method(a.tensor, "tolist", [], {})


def _fill(tracer: Tracer, a: Value, value: Value) -> Value:
    array = _array(tracer, a, "ndarray.fill")
    write(tracer, array, array.tensor, value)
    return ConstantValue(None)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "std": _deviation("std", torch.std),
    "var": _deviation("var", torch.var),
    "argmax": _position("argmax", torch.argmax),
    "argmin": _position("argmin", torch.argmin),
    "cumsum": _running("cumsum", torch.cumsum),
    "cumprod": _running("cumprod", torch.cumprod),
    "reshape": _reshape,
    "ravel": _ravel,
    "transpose": _transpose,
    "swapaxes": _swapaxes,
    "squeeze": _squeeze,
    "clip": _clip,
    "dot": _dot,
    "copy": _copy_as_it_lies,
    "expand_dims": _expand_dims,
    "matmul": matrix_product,
    "concatenate": _joined("concatenate", torch.cat),
    "stack": _joined("stack", torch.stack),
    "where": _where,
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "array": _new_array,
    "asarray": _as_array,
}
_ALSO_METHODS = {
    "std",
    "var",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "reshape",
    "ravel",
    "transpose",
    "swapaxes",
    "squeeze",
    "clip",
    "dot",
}
_METHODS: dict[str, Callable[..., Value]] = {
    "copy": _copy,
    "flatten": _flatten,
    "astype": _astype,
    "item": _item,
    "tolist": _to_list,
    "fill": _fill,
}
for _name, _method in _METHODS.items():
    array_methods.add(_name, _method)
if FOLLOWED:
    _register_functions()
