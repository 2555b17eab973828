"""Step counts of optimizers, in double precision: eager computes factors from them as Python numbers, though the counts
are float32 tensors."""

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

# State entries that eager reads into Python numbers: step counts, and factors that NAdam and ASGD compute from these.
_COUNTS = frozenset({"step", "mu_product", "eta"})
_IN_PLACE = frozenset({operator.iadd, operator.isub, operator.imul, operator.itruediv})


def counts_as_numbers(context: CaptureContext, function: Any, args: list[Value]) -> list[Value]:
    """The arguments of a function that an optimizer calls in a step: counts that it reads become float64, and values
    that it writes into counts become float32."""
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
    """Eager returns a number, compiled code a tensor."""
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
    """A float64 scalar in the precision of counts, for writes into a count."""
    return context.record_method("float", [value], {}) if _is_scalar(value, torch.float64) else value


def _is_scalar(value: Value, dtype: torch.dtype) -> bool:
    return isinstance(value, TensorValue) and value.fake.dim() == 0 and value.fake.dtype == dtype
