"""`torch.Tensor(…)`, `torch.FloatTensor(…)` and the like, which make an uninitialized tensor of given sizes or a tensor
of given numbers. Factory functions are in torch_functions.py."""

from __future__ import annotations

from typing import Any

import torch

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.interpreter.torch_overrides import as_subclass
from stator.dynamo.values.base import CaptureContext, NotConstant, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue

_NAMES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
_TYPES = [getattr(torch, f"{name}Tensor") for name in _NAMES]
_MOST_LITERALS = 4096  # in a graph


def _register(kind: Any) -> None:
    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        dtype = torch.get_default_dtype() if kind is torch.Tensor else kind.dtype
        named: dict[str, Value] = {"dtype": ConstantValue(dtype), "device": ConstantValue(torch.device("cpu"))}
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


def _of_numbers(context: CaptureContext, kind: Any, given: Value, named: dict[str, Value]) -> Value:
    """Let the class itself convert the numbers now: its rules are not those of torch.tensor."""
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
