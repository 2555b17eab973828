"""Functions that divide a tensor into parts: as many as there are rows, or as sizes and arguments say. Where this
number keeps changing from call to call, the interpreter makes the parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from stator.dynamo.interpreter.calling import calls, tensor_methods
from stator.dynamo.values.base import CaptureContext, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.shapes.expr import as_expr
from stator.shapes.sym_node import to_expression


@tensor_methods.register("unbind")
def _unbind(context: CaptureContext, tensor: TensorValue, *args: Value, **kwargs: Value) -> Value:
    dim = [*args, *kwargs.values(), ConstantValue(0)][0]
    if isinstance(dim, ConstantValue) and type(dim.value) is int:
        context.loops.check_parts(tensor, dim.value)
    return context.record_method("unbind", [tensor, *args], kwargs)


@calls(torch.unbind)
def _unbind_function(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    if args and isinstance(args[0], TensorValue):
        return context.call_tensor_method(args[0], "unbind", list(args[1:]), kwargs)
    return context.record_function(torch.unbind, list(args), kwargs)


def _divides(name: str, function: Callable[..., Any], check: Callable[..., None]) -> None:
    """Register a method and the function of this name, behind a check of their arguments."""

    def method(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        check(context, args, kwargs)
        return context.record_method(name, list(args), kwargs)

    def plain(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        check(context, args, kwargs)
        return context.record_function(function, list(args), kwargs)

    tensor_methods.add(name, method)
    calls(function)(plain)


@tensor_methods.register("tensor_split")
def _tensor_split(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    _check_sections(context, args, kwargs)
    return context.record_method("tensor_split", *_with_listed_indices(context, args, kwargs))


@calls(torch.tensor_split)
def _tensor_split_function(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    _check_sections(context, args, kwargs)
    return context.record_function(torch.tensor_split, *_with_listed_indices(context, args, kwargs))


def _with_listed_indices(
    context: CaptureContext, args: Sequence[Value], kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    """The arguments of tensor_split, with numbers in place of a tensor of indices, as torch reads it."""
    named = dict(kwargs)
    indices = args[1] if len(args) > 1 else named.pop("tensor_indices_or_sections", None)
    fake = indices.fake if isinstance(indices, TensorValue) else None
    if fake is None or fake.dim() != 1 or fake.dtype is not torch.int64 or fake.device.type != "cpu":
        return list(args), kwargs
    listed = context.call_tensor_method(indices, "tolist", [], {})
    if len(args) > 1:
        return [args[0], listed, *args[2:]], named
    return list(args), {"indices": listed, **named}


def _check_pieces(context: CaptureContext, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """Of `split`: the parts have a length, if it is an int."""
    tensor, dim = args[0] if args else None, kwargs.get("dim", args[2] if len(args) > 2 else ConstantValue(0))
    length = _int(_number_of(args, kwargs))
    if not isinstance(tensor, TensorValue) or not isinstance(dim, ConstantValue) or length is None:
        return
    shape = tensor.fake.shape
    if type(dim.value) is int and -len(shape) <= dim.value < len(shape):
        size = as_expr(to_expression(shape[dim.value]))
        context.loops.check_number_of_parts(tensor, (size + length - 1) // length)


def _check_sections(context: CaptureContext, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """Of `chunk` and `tensor_split`: an int is the number of the parts, or nearly so."""
    number = _number_of(args, kwargs)
    if args and isinstance(args[0], TensorValue) and type(number) is SymbolicNumber and number.kind is int:
        context.loops.check_number_of_parts(args[0], number.expression)


def _number_of(args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    given = [*args[1:], *(value for name, value in kwargs.items() if name != "dim")]
    return given[0] if given else None


def _int(value: Value | None) -> Any:
    """The expression of an int that may be a length; None for other values."""
    if type(value) is SymbolicNumber:
        return value.expression if value.kind is int else None
    return value.value if isinstance(value, ConstantValue) and type(value.value) is int and value.value > 0 else None


_divides("split", torch.split, _check_pieces)
_divides("chunk", torch.chunk, _check_sections)
