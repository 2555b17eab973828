"""Conversions between arrays of NumPy, numbers and tensors. They share memory wherever they do in eager."""

from __future__ import annotations

from typing import Any

import torch

from stator.dynamo.handlers.torch_calls.device_contexts import on_device
from stator.dynamo.host.numpy_boundary import NUMPY_OF
from stator.dynamo.interpreter.calling import calls, tensor_methods
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, SequenceValue
from stator.dynamo.values.symbolic_numbers import is_open
from stator.dynamo.values.tensors.arrays import ArrayValue, array_of_tensor
from stator.dynamo.values.tensors.tensor import TensorValue

_CPU = ConstantValue(torch.device("cpu"))
_YES = ConstantValue(True)


def _on_the_same_memory(context: CaptureContext, tensor: TensorValue) -> Value:
    return context.record_method("detach", [tensor], {})


@calls(torch.from_numpy)
def _from_numpy(context: CaptureContext, array: Value) -> Value:
    if not isinstance(array, ArrayValue) or array.scalar:
        raise unsupported("torch-argument", f"{array.describe(context)} as the argument of torch.from_numpy")
    return _on_the_same_memory(context, array.tensor)


def _tensor_maker(function: Any, shares: bool) -> None:
    """torch.tensor copies an array; torch.as_tensor and torch.asarray share its memory where they can."""

    def handler(context: CaptureContext, data: Value, *args: Value, **kwargs: Value) -> Value:
        kwargs = on_device(context, function, kwargs)
        if not isinstance(data, ArrayValue):
            made = None if args else _of_numbers(context, data, kwargs)
            return made or context.record_function(function, [data, *args], kwargs)
        if args or (shares and data.scalar):
            raise unsupported("torch-argument", f"{data.describe(context)} as an argument of torch.{function.__name__}")
        tensor = context.record_function(function, [data.tensor], kwargs) if not shares or kwargs else data.tensor
        assert isinstance(tensor, TensorValue)
        return _on_the_same_memory(context, tensor) if tensor is data.tensor else tensor

    handler.__name__ = function.__name__
    calls(function)(handler)


_tensor_maker(torch.as_tensor, True)
_tensor_maker(torch.asarray, True)


@calls(torch.tensor)
def _tensor(context: CaptureContext, data: Value, **kwargs: Value) -> Value:
    kwargs = on_device(context, torch.tensor, kwargs)
    if not isinstance(data, ArrayValue):
        return _of_numbers(context, data, kwargs) or context.record_function(torch.tensor, [data], kwargs)
    wanted, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
    if kwargs:
        raise unsupported("torch-argument", f"{data.describe(context)} as an argument of torch.tensor, with options")
    copied = context.record_method("clone", [data.tensor], {})
    for place in (wanted, device):
        if place is not None and not context.is_none(place):
            copied = context.record_method("to", [copied, place], {})
    return copied


def _of_numbers(context: CaptureContext, data: Value, kwargs: dict[str, Value]) -> Value | None:
    """A tensor of a number that is no constant, or of nested lists with such numbers, without reading them. None
    for dtypes for which eager refuses some values, and for lists of anything else than numbers."""
    shape, numbers = [], [data]
    while all(isinstance(one, SequenceValue) for one in numbers):
        lists = [list(context.iterate(one)) for one in numbers]
        shape.append(len(lists[0]))
        if not shape[-1] or len({len(one) for one in lists}) > 1:
            return None
        numbers = [one for items in lists for one in items]
    kinds = {number.python_type(context) for number in numbers}
    if not any(map(is_open, numbers)) or not kinds <= _EXACT.keys():
        return None
    if not kwargs.keys() <= {"dtype", "device"}:
        return None
    kind = next(one for one in _EXACT if one in kinds)
    own = torch.get_default_dtype() if kind is float else _EXACT[kind]
    given = context.constant_of(kwargs["dtype"], "dtype") if "dtype" in kwargs else None
    wanted: torch.dtype = own if given is None else given
    if kind is not bool and not (wanted.is_floating_point or wanted is own):
        return None
    made = [_of_number(context, number, wanted) for number in numbers]
    tensor = made[0]
    if shape:
        joined = context.record_function(torch.stack, [ListValue(made)], {})
        tensor = context.record_method("reshape", [joined, context.known(tuple(shape))], {})
    return context.record_method("to", [tensor], {"device": kwargs["device"]}) if "device" in kwargs else tensor


_EXACT: dict[type, torch.dtype] = {float: torch.float64, int: torch.int64, bool: torch.bool}  # widest first


def _of_number(context: CaptureContext, number: Value, wanted: torch.dtype) -> Value:
    """A tensor without dimensions, by conversions that take every value that eager takes."""
    kind = number.python_type(context)
    if kind is bool and is_open(number):
        held = context.recorder.numbers.tensor(number)
        return context.record_method("to", [held], {"device": _CPU, "dtype": ConstantValue(wanted), "copy": _YES})
    exact = ConstantValue(_EXACT[kind])
    tensor = context.record_function(torch.scalar_tensor, [number], {"dtype": exact, "device": _CPU})
    for dtype in (torch.float64, wanted) if wanted.is_floating_point else (wanted,):
        tensor = context.record_method("to", [tensor, ConstantValue(dtype)], {})
    return tensor


@tensor_methods.register("numpy")
def _numpy(context: CaptureContext, tensor: TensorValue) -> Value:
    fake = tensor.fake
    fixed = context.recorder.numbers.has_fixed_sizes("a NumPy array", fake)
    if not fixed or fake.requires_grad or fake.device.type != "cpu" or fake.dtype not in NUMPY_OF or not fake.numel():
        raise unsupported(
            "torch-error" if fake.requires_grad else "data-dependent-value",
            f"Tensor.numpy() on {tensor.describe(context)}",
            "keep the value in a tensor, or call it outside of the compiled function",
        )
    return array_of_tensor(context, _on_the_same_memory(context, tensor))
