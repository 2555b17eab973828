"""From arrays of NumPy and numbers to tensors, and back: arrays share the memory wherever they do in eager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..calling import calls, tensor_methods
from ..numpy_boundary import NUMPY_OF
from ..values.arrays import ArrayValue, made
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue
from ..values.read_numbers import ReadNumberValue
from ..values.sequences import SequenceValue
from ..values.tensors import TensorValue, has_fixed_sizes
from ..values.unknown_numbers import UnknownNumberValue
from .device_contexts import on_device
from .stacked_numbers import stacked

if TYPE_CHECKING:
    from ..tracer import Tracer


_CPU = ConstantValue(torch.device("cpu"))


def _on_the_same_memory(tracer: Tracer, tensor: TensorValue) -> Value:
    return tracer.record_method("detach", [tensor], {})


@calls(torch.from_numpy)
def _from_numpy(tracer: Tracer, array: Value) -> Value:
    if not isinstance(array, ArrayValue) or array.scalar:
        raise unsupported("torch-argument", f"{array.describe(tracer)} as the argument of torch.from_numpy")
    return _on_the_same_memory(tracer, array.tensor)


def _tensor_maker(function: Any, shares: bool) -> None:
    """torch.tensor copies an array; torch.as_tensor and torch.asarray share its memory where they can."""

    def handler(tracer: Tracer, data: Value, *args: Value, **kwargs: Value) -> Value:
        kwargs = on_device(tracer, function, kwargs)
        if not isinstance(data, ArrayValue):
            return tracer.record_function(function, [data, *args], kwargs)
        if args or (shares and data.scalar):
            raise unsupported("torch-argument", f"{data.describe(tracer)} as an argument of torch.{function.__name__}")
        tensor = tracer.record_function(function, [data.tensor], kwargs) if not shares or kwargs else data.tensor
        assert isinstance(tensor, TensorValue)
        return _on_the_same_memory(tracer, tensor) if tensor is data.tensor else tensor

    handler.__name__ = function.__name__
    calls(function)(handler)


_tensor_maker(torch.as_tensor, True)
_tensor_maker(torch.asarray, True)


@calls(torch.tensor)
def _tensor(tracer: Tracer, data: Value, **kwargs: Value) -> Value:
    kwargs = on_device(tracer, torch.tensor, kwargs)
    if not isinstance(data, ArrayValue):
        made_of = _of_number(tracer, data, kwargs) or _of_stacked(tracer, data, kwargs)
        return made_of or tracer.record_function(torch.tensor, [data], kwargs)
    wanted, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
    if kwargs:
        raise unsupported("torch-argument", f"{data.describe(tracer)} as an argument of torch.tensor, with options")
    copied = tracer.record_method("clone", [data.tensor], {})
    for place in (wanted, device):
        if place is not None and not tracer.is_none(place):
            copied = tracer.record_method("to", [copied, place], {})
    return copied


def _of_number(tracer: Tracer, data: Value, kwargs: dict[str, Value]) -> Value | None:
    """A float or int that only the run can tell: torch.tensor would read it to see what it is. Converted in steps that
    never refuse a value that eager takes; None for dtypes to which eager refuses some."""
    if type(data) not in (ReadNumberValue, UnknownNumberValue) or not kwargs.keys() <= {"dtype", "device"}:
        return None
    kind = data.python_type(tracer)
    own = {float: torch.get_default_dtype(), int: torch.int64}.get(kind)
    given = tracer.constant_of(kwargs["dtype"], "dtype") if "dtype" in kwargs else None
    wanted: torch.dtype | None = own if given is None else given
    if own is None or wanted is None or not (wanted.is_floating_point or wanted is own):
        return None
    exact = ConstantValue(torch.float64 if kind is float else torch.int64)
    tensor = tracer.record_function(torch.scalar_tensor, [data], {"dtype": exact, "device": _CPU})
    for dtype in (torch.float64, wanted) if wanted.is_floating_point else ():
        tensor = tracer.record_method("to", [tensor, ConstantValue(dtype)], {})
    return tracer.record_method("to", [tensor], {"device": kwargs["device"]}) if "device" in kwargs else tensor


def _of_stacked(tracer: Tracer, data: Value, kwargs: dict[str, Value]) -> Value | None:
    """A list in which there are tensors of one number each."""
    if not isinstance(data, SequenceValue) or not kwargs.keys() <= {"dtype", "device"}:
        return None
    wanted = tracer.constant_of(kwargs["dtype"], "dtype") if "dtype" in kwargs else None
    made = stacked(tracer, data, wanted)
    if made is None:
        return None
    named = {"device": ConstantValue(torch.device("cpu")), **kwargs}
    return tracer.record_method("to", [made], named)


@tensor_methods.register("numpy")
def _numpy(tracer: Tracer, tensor: TensorValue) -> Value:
    fake = tensor.fake
    fixed = has_fixed_sizes(fake)
    if not fixed or fake.requires_grad or fake.device.type != "cpu" or fake.dtype not in NUMPY_OF or not fake.numel():
        raise unsupported(
            "data-dependent-value",
            f"Tensor.numpy() on {tensor.describe(tracer)}",
            "keep the value in a tensor, or call it outside of the compiled function",
        )
    return made(tracer, _on_the_same_memory(tracer, tensor))
