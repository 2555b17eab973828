"""Conversions between arrays of NumPy, numbers and tensors. They share memory wherever they do in eager."""

from __future__ import annotations

from typing import Any

import torch

from stator.dynamo.handlers.torch_calls.device_contexts import on_device
from stator.dynamo.handlers.torch_calls.typed_tensors import tensor_of_numbers
from stator.dynamo.host.numpy_boundary import NUMPY_OF
from stator.dynamo.interpreter.calling import calls, tensor_methods
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.tensors.arrays import ArrayValue, array_of_tensor
from stator.dynamo.values.tensors.tensor import TensorValue

_CPU = ConstantValue(torch.device("cpu"))


def _on_the_same_memory(context: CaptureContext, tensor: TensorValue) -> Value:
    return context.record_method("detach", [tensor], {})


@calls(torch.from_numpy)
def _from_numpy(context: CaptureContext, array: Value) -> Value:
    if not isinstance(array, ArrayValue) or array.scalar:
        raise unsupported("torch-argument", f"{array.describe(context)} as the argument of torch.from_numpy")
    return _on_the_same_memory(context, array.memory)


def _tensor_maker(function: Any, shares: bool) -> None:
    """torch.tensor copies an array; torch.as_tensor and torch.asarray share its memory where they can."""

    def handler(context: CaptureContext, data: Value, *args: Value, **kwargs: Value) -> Value:
        kwargs = on_device(context, function, kwargs)
        if not isinstance(data, ArrayValue):
            made = None if args else tensor_of_numbers(context, data, kwargs)
            return made or context.record_function(function, [data, *args], kwargs)
        if args or (shares and data.scalar):
            raise unsupported("torch-argument", f"{data.describe(context)} as an argument of torch.{function.__name__}")
        tensor = context.record_function(function, [data.memory], kwargs) if not shares or kwargs else data.memory
        assert isinstance(tensor, TensorValue)
        return _on_the_same_memory(context, tensor) if tensor is data.memory else tensor

    handler.__name__ = function.__name__
    calls(function)(handler)


_tensor_maker(torch.as_tensor, True)
_tensor_maker(torch.asarray, True)


@calls(torch.tensor)
def _tensor(context: CaptureContext, data: Value, **kwargs: Value) -> Value:
    kwargs = on_device(context, torch.tensor, kwargs)
    if not isinstance(data, ArrayValue):
        return tensor_of_numbers(context, data, kwargs) or context.record_function(torch.tensor, [data], kwargs)
    wanted, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
    if kwargs:
        raise unsupported("torch-argument", f"{data.describe(context)} as an argument of torch.tensor, with options")
    copied = context.record_method("clone", [data.memory], {})
    for place in (wanted, device):
        if place is not None and not context.is_none(place):
            copied = context.record_method("to", [copied, place], {})
    return copied


@tensor_methods.register("new_tensor")
def _new_tensor(context: CaptureContext, tensor: TensorValue, data: Value, **kwargs: Value) -> Value:
    own = {"dtype": ConstantValue(tensor.fake.dtype), "device": ConstantValue(tensor.fake.device)}
    given = {name: value for name, value in kwargs.items() if name not in own or not context.is_none(value)}
    made = None if isinstance(data, ArrayValue) else tensor_of_numbers(context, data, own | given)
    return made or context.record_method("new_tensor", [tensor, data], kwargs)


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
