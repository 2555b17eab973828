"""How many steps an optimizer has made, as the numbers that its formulas take: in double precision, as eager's Python
numbers are, though tensors of single precision count. The formulas themselves are torch's.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import _get_value

from stator.dynamo.guards.source import ItemSource
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import SequenceValue, TupleValue
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

# What eager reads from tensors into Python numbers, by the keys of an optimizer's state: steps made, and what NAdam and
# ASGD compute from them.
_COUNTS = frozenset({"step", "mu_product", "eta"})
_IN_PLACE = frozenset({operator.iadd, operator.isub, operator.imul, operator.itruediv})


def counts_as_numbers(context: CaptureContext, function: Any, args: list[Value]) -> list[Value]:
    """The arguments of a function that an optimizer calls in a step: counts in double precision where they are read,
    and what is written into them in theirs."""
    if not args:
        return args
    if function in _IN_PLACE or getattr(function, "__name__", "").endswith("_"):
        return [args[0], *[_each(context, arg, _narrowed) for arg in args[1:]]] if _counts(context, args[0]) else args
    if function is torch.where and not any(isinstance(arg, TensorValue) for arg in args[1:]):  # RAdam, of two floats
        double: dict[str, Value] = {"dtype": ConstantValue(torch.float64)}
        return [args[0], *[context.record_function(torch.scalar_tensor, [arg], double) for arg in args[1:]]]
    return [_each(context, arg, _widened) for arg in args]


@calls(_get_value)
def _value(context: CaptureContext, number: Value) -> Value:
    """In eager the number, in compiled code the tensor."""
    return _widened(context, number)


def _each(context: CaptureContext, value: Value, change: Any) -> Value:
    if isinstance(value, SequenceValue):
        items = [change(context, item) for item in context.iterate(value)]
        return TupleValue(items) if any(a is not b for a, b in zip(items, value.items, strict=True)) else value
    return change(context, value)


def _counts(context: CaptureContext, value: Value) -> bool:
    if isinstance(value, SequenceValue):
        return bool(value.items) and _counts(context, next(iter(context.iterate(value))))
    return isinstance(value, TensorValue) and isinstance(value.source, ItemSource) and value.source.key in _COUNTS


def _widened(context: CaptureContext, value: Value) -> Value:
    if not _counts(context, value) or not _is_scalar(value, torch.float32):
        return value
    return context.record_method("double", [value], {})


def _narrowed(context: CaptureContext, value: Value) -> Value:
    """A number that is written into a count, or combined with it there, in the count's precision."""
    return context.record_method("float", [value], {}) if _is_scalar(value, torch.float64) else value


def _is_scalar(value: Value, dtype: torch.dtype) -> bool:
    return isinstance(value, TensorValue) and value.fake.dim() == 0 and value.fake.dtype == dtype
