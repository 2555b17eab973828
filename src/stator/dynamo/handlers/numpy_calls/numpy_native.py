"""Calls of NumPy that NumPy itself makes while the graph runs (prims/operators/numpy_calls.py): for functions that have
no
counterpart in torch that is surely the same, or not for these arguments. Only functions that change nothing, for which
dtypes, sizes and strides of results follow from those of the arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stator.base.signals import is_of_a_signal
from stator.dynamo.host.numpy_boundary import HELD, numpy
from stator.dynamo.values.base import Value
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.slices import SliceValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.arrays import ArrayValue, made, natives
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.prims.operators import numpy_calls
from stator.prims.operators.numpy_calls import Given

from .array_operations import refused

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext

_REFUSED = frozenset({"out", "overwrite_input", "like", "subok", "copy"})
_OF_REDUCTIONS = frozenset({"axis", "dtype", "keepdims", "initial", "where"})
_MOST_ELEMENTS = 1 << 24  # of a result, for the trial that says what it looks like
_NAMES = {function: name for name, function in numpy_calls.FUNCTIONS.items()}


class NoCall(Exception):
    """Arguments that cannot be handed over."""


def native(context: CaptureContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of CALLABLE[name] as a value of the graph. Raises Unsupported where that is not known to be right."""
    arrays: list[TensorValue] = []
    try:
        given = [_argument(context, arg, arrays) for arg in args]
        named = {key: _argument(context, arg, arrays) for key, arg in kwargs.items()}
        _check_options(name, given, named)
        text = numpy_calls.call_text(name, given, named)
    except (NoCall, TypeError, ValueError):
        raise refused(context, f"numpy.{name}", [*args, *kwargs.values()]) from None
    if context.recorder.transforms:
        raise refused(context, f"numpy.{name} under a function transform,", args)
    trial = _trial(context, name, text, arrays, args)
    results = [numpy_calls.described(leaf) for leaf in numpy_calls.leaves(trial)]
    text_of_results = ConstantValue(numpy_calls.results_text(results))
    made_of = context.record_function(
        numpy_calls.numpy_call, [ListValue(list(arrays)), ConstantValue(text), text_of_results], {}
    )
    tensors = iter(context.iterate(made_of))
    return _wrapped(context, trial, tensors)


def _argument(context: CaptureContext, value: Value, arrays: list[TensorValue]) -> Any:
    value = context.realized(value)
    if isinstance(value, ArrayValue):
        arrays.append(value.tensor)
        return Given(len(arrays) - 1, value.scalar)
    if isinstance(value, ListValue) and value.cls is list:
        return [_argument(context, item, arrays) for item in value.items]
    if type(value) is TupleValue and value.python_type(context) is tuple:
        return tuple(_argument(context, item, arrays) for item in value.items)
    if isinstance(value, SliceValue):
        return slice(*(_argument(context, at, arrays) for at in (value.start, value.stop, value.step)))
    if isinstance(value, ClassValue):
        return numpy.dtype(value.cls)
    if isinstance(value, (ConstantValue, SymbolicNumber)):
        return context.constant_of(value, "an argument of a function of NumPy")
    raise NoCall


def _check_options(name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Refuses what writes to an argument, and makes of other classes."""
    function = numpy_calls.CALLABLE[name]
    if isinstance(function, numpy.ufunc):
        if len(args) != function.nin or not kwargs.keys() <= {"dtype", "casting"}:
            raise NoCall
        return
    if isinstance(getattr(function, "__self__", None), numpy.ufunc):
        if len(args) > 2 or not kwargs.keys() <= _OF_REDUCTIONS:
            raise NoCall
        return
    if name not in numpy_calls.FUNCTIONS:
        return
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    if any(key in _REFUSED and bound[key] is not None for key in bound):
        raise NoCall
    if name == "where" and len(args) != 3:
        raise NoCall  # as many results as elements are true
    of_arrays = {"repeat": "repeats", "insert": "obj"}.get(name)
    if of_arrays in bound and not isinstance(bound[of_arrays], int):
        raise NoCall
    if name == "polyfit" and any(bound.get(option) for option in ("full", "cov")):
        raise NoCall


def _trial(context: CaptureContext, name: str, text: str, arrays: list[TensorValue], args: list[Value]) -> Any:
    """What NumPy gives for other numbers in arrays that lie the same."""
    for number in (1, 0):
        stand_ins = [_stand_in(array.fake, number, name.startswith("linalg.")) for array in arrays]
        try:
            result = numpy_calls.call(text, stand_ins)
        except Exception as error:
            if is_of_a_signal(error):
                raise
            continue
        if _is_new(result, stand_ins):
            return result
        break
    raise refused(context, f"numpy.{name}", args)


def _stand_in(fake: torch.Tensor, number: int, of_matrices: bool) -> Any:
    tensor = torch.empty_strided(tuple(fake.shape), fake.stride(), dtype=fake.dtype)
    array = tensor.numpy()
    rising = numpy.linspace(0.25, 0.75, array.size).reshape(array.shape)
    array[...] = number if array.dtype.kind in "biu" else rising
    if of_matrices and array.ndim >= 2 and array.shape[-1] == array.shape[-2] and 0 not in tensor.stride():
        array[...] = numpy.eye(array.shape[-1])
    return array


def _is_new(result: Any, given: list[Any]) -> bool:
    """Whether all results are arrays and numbers of their own, of dtypes that the graph holds."""
    leaves = list(numpy_calls.leaves(result))
    try:
        described = [numpy_calls.described(leaf) for leaf in leaves]
    except TypeError:
        return False
    arrays = [leaf for leaf in leaves if type(leaf) is numpy.ndarray]
    others = [*given, *arrays]
    for at, array in enumerate(arrays):
        if any(numpy.may_share_memory(array, other) for other in others[: len(given) + at]):
            return False
        if any(stride < 0 for stride in array.strides) or not 0 < array.size <= _MOST_ELEMENTS:
            return False
    return bool(leaves) and all(numpy.dtype(one.dtype) in HELD for one in described)


def _wrapped(context: CaptureContext, trial: Any, tensors: Any) -> Value:
    if isinstance(trial, list):
        return ListValue([_wrapped(context, item, tensors) for item in trial])
    if isinstance(trial, tuple):
        items: list[Value] = [_wrapped(context, item, tensors) for item in trial]
        return TupleValue(items) if type(trial) is tuple else context.call(context.known(type(trial)), items, {})
    return made(context, next(tensors), scalar=isinstance(trial, numpy.generic))


def name_of(function: Any) -> str | None:
    """The name in FUNCTIONS of one of NumPy's."""
    return _NAMES.get(function)


def alone(name: str) -> Callable[..., Value]:
    """The handler of a function that only NumPy computes."""

    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        return native(context, name, list(args), kwargs)

    handler.__name__ = name
    return handler


natives.append(native)
