"""Numbers of optimizers. Those that schedulers set are symbolic from the first version on, before they first change.
Step counts are in double precision: eager computes factors from them as Python numbers, though the counts are float32
tensors.
"""

from __future__ import annotations

import inspect
import operator
from types import FunctionType
from typing import Any

import torch
from torch import optim
from torch.optim.optimizer import _get_value

from stator.dynamo.guards.source import ItemSource, Source
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import CaptureContext, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import SequenceValue, TupleValue
from stator.dynamo.values.tensors.tensor import TensorValue


def expect_schedule(context: CaptureContext, optimizer: Value) -> None:
    """Expect changes of the learning rate, and of the momentum if a scheduler has left its entry in the group, so that
    the first change compiles nothing."""
    for group in context.iterate(context.get_attr(optimizer, "param_groups")):
        if isinstance(group, DictValue) and group.source is not None and group.obj is not None:
            places: set[Source] = {ItemSource(group.source, "lr")} if type(group.obj.get("lr")) is not int else set()
            if "max_momentum" in group.obj:
                places |= {ItemSource(group.source, "momentum"), ItemSource(ItemSource(group.source, "betas"), 0)}
            context.expected |= places


def _register(step: FunctionType) -> None:
    """Some optimizers read the learning rate before they call another function with a handler."""

    def handler(context: CaptureContext, optimizer: Value, *args: Value, **kwargs: Value) -> Value:
        expect_schedule(context, optimizer)
        return context.inline(context.known(step), [optimizer, *args], kwargs)  # type: ignore[arg-type]

    calls(step)(handler)


# An optimizer made before the compiler started has put a wrapper of its base's `step` into its own class.
_STEPS = {
    inspect.unwrap(vars(_class)["step"])
    for _class in vars(optim).values()
    if isinstance(_class, type)
    and issubclass(_class, optim.Optimizer)
    and type(vars(_class).get("step")) is FunctionType
}
for _step in _STEPS - {inspect.unwrap(optim.LBFGS.step)}:
    _register(_step)


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
