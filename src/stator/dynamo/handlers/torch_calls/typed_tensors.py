"""`torch.Tensor(…)`, `torch.FloatTensor(…)` and the like, which make an uninitialized tensor of given sizes or a tensor
of given numbers; and tensors of numbers that are no constants. Factory functions are in torch_functions.py."""

from __future__ import annotations

import functools
from typing import Any

import torch

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.interpreter.torch_overrides import as_subclass
from stator.dynamo.values.base import CaptureContext, NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, SequenceValue, TupleValue
from stator.dynamo.values.symbolic_numbers import is_open
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue

_NAMES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
_TYPES = [getattr(torch, f"{name}Tensor") for name in _NAMES]
_MOST_LITERALS = 4096  # in a graph
_CPU = ConstantValue(torch.device("cpu"))
_YES = ConstantValue(True)


def _register(kind: Any) -> None:
    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        dtype = torch.get_default_dtype() if kind is torch.Tensor else kind.dtype
        named: dict[str, Value] = {"dtype": ConstantValue(dtype), "device": _CPU}
        if kwargs or (kind is torch.Tensor and torch._C._get_default_device() != "cpu"):
            raise _refusal(kind)
        if kind is torch.Tensor and len(args) == 1 and isinstance(args[0], (TensorValue, TensorSubclassValue)):
            return as_subclass(context, args[0], kind)
        if not args:
            return context.record_function(torch.empty, [TupleValue([ConstantValue(0)])], named)
        if all(_is_size(arg.python_type(context)) for arg in args):
            return context.record_function(torch.empty, [TupleValue(list(args))], named)
        given = args[0]
        if len(args) == 1 and isinstance(given, TupleValue) and given.cls is torch.Size:
            return context.record_function(torch.empty, [given], named)
        if len(args) != 1 or not isinstance(given, (ListValue, TupleValue)):
            raise _refusal(kind)
        return _of_numbers(context, kind, given, named)

    calls(kind)(handler)


def _is_size(kind: type) -> bool:
    return issubclass(kind, int) and kind is not bool


def tensor_of_numbers(context: CaptureContext, data: Value, kwargs: dict[str, Value]) -> Value | None:
    """A tensor of a number that is no constant, or of nested lists with such numbers and tensors without dimensions,
    without reading them. None for dtypes for which eager refuses some values, and for lists of anything else."""
    shape, numbers = [], [data]
    while all(isinstance(one, SequenceValue) for one in numbers):
        lists = [list(context.iterate(one)) for one in numbers]
        shape.append(len(lists[0]))
        if not shape[-1] or len({len(one) for one in lists}) > 1:
            return None
        numbers = [one for items in lists for one in items]
    kinds = {_kind_of(context, number) for number in numbers}
    if not any(isinstance(one, TensorValue) or is_open(one) for one in numbers) or not kinds <= _EXACT.keys():
        return None
    if isinstance(data, TensorValue) or not kwargs.keys() <= {"dtype", "device"}:
        return None
    if context.recorder.transforms and any(isinstance(one, TensorValue) for one in numbers):
        return None  # eager refuses to read them
    kind = next(one for one in _EXACT if one in kinds)
    own = functools.reduce(torch.promote_types, [_dtype_of(context, number) for number in numbers])
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


def _kind_of(context: CaptureContext, number: Value) -> type | None:
    """The type of a number, or of the number in a tensor without dimensions; None for anything else."""
    if not isinstance(number, TensorValue):
        return number.python_type(context)
    dtype, plain = number.fake.dtype, type(number) is TensorValue and not number.fake.dim()
    return None if not plain or dtype is torch.bool or dtype.is_complex else float if dtype.is_floating_point else int


def _dtype_of(context: CaptureContext, number: Value) -> torch.dtype:
    if isinstance(number, TensorValue):
        return number.fake.dtype
    kind = number.python_type(context)
    return torch.get_default_dtype() if kind is float else _EXACT[kind]


def _of_number(context: CaptureContext, number: Value, wanted: torch.dtype) -> Value:
    """A tensor without dimensions, by conversions that take every value that eager takes."""
    kind = _kind_of(context, number) or number.python_type(context)
    if kind is bool and is_open(number):
        held = context.recorder.numbers.tensor(number)
        return context.record_method("to", [held], {"device": _CPU, "dtype": ConstantValue(wanted), "copy": _YES})
    exact = ConstantValue(_EXACT[kind])
    if isinstance(number, TensorValue):
        tensor = context.record_method("detach", [number], {})
        tensor = context.record_method("to", [tensor], {"device": _CPU, "dtype": exact})
    else:
        tensor = context.record_function(torch.scalar_tensor, [number], {"dtype": exact, "device": _CPU})
    for dtype in (torch.float64, wanted) if wanted.is_floating_point else (wanted,):
        tensor = context.record_method("to", [tensor, ConstantValue(dtype)], {})
    return tensor


def _of_numbers(context: CaptureContext, kind: Any, given: Value, named: dict[str, Value]) -> Value:
    """Let the class itself convert constants now: its rules are not those of torch.tensor."""
    made = tensor_of_numbers(context, given, named)
    if made is not None:
        return made
    try:
        numbers = _plain_numbers(context, given)
    except NotConstant:
        raise _refusal(kind) from None
    found = context.run_real(kind, (numbers,))
    if found.numel() > _MOST_LITERALS:
        raise _refusal(kind)
    if not found.numel():
        return context.record_function(torch.empty, [context.known(tuple(found.shape))], named)
    return context.record_function(torch.tensor, [_constant_lists(found.tolist())], named)


def _plain_numbers(context: CaptureContext, value: Value) -> Any:
    value = context.realized(value)
    if isinstance(value, (ListValue, TupleValue)):
        return [_plain_numbers(context, item) for item in value.items]
    return value.constant()


def _constant_lists(items: Any) -> Value:
    return ListValue([_constant_lists(item) for item in items]) if isinstance(items, list) else ConstantValue(items)


def _refusal(kind: Any) -> Exception:
    return unsupported("new-object", f"making an instance of torch.{kind.__name__} from something other than numbers")


for _kind in (torch.Tensor, *_TYPES):
    _register(_kind)
