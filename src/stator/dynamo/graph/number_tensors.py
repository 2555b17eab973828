"""Expressions over numbers in tensors as operators of the graph, on tensors without dimensions: float64, int64 or bool.

number_nodes.py decides which expressions are written so.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stator.dynamo.ir.size_expressions import SizeExpressions
from stator.dynamo.values.base import CaptureContext, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr

_FUNCTIONS: dict[Any, Any] = {
    **{abs: torch.abs, math.sqrt: torch.sqrt, math.exp: torch.exp, math.log: torch.log},
    **{operator.not_: torch.logical_not},
}
# torch computes `1.5 / x` by a reciprocal, and `x ** 0.5` by a root, unless both operands are tensors
_BETWEEN_TENSORS = frozenset((operator.truediv, operator.mod, operator.pow))
_CHOICES: dict[Any, Any] = {max: operator.gt, min: operator.lt}
_DTYPES: dict[Any, torch.dtype] = {int: torch.int64, float: torch.float64}


@contextmanager
def between_operands(recorder: Any) -> Iterator[None]:
    """A block that records calls while the operands of another one are lowered."""
    names = ("used", "taken_numbers", "takes_floats", "takes_ints", "takes_truths")
    kept, read = {name: getattr(recorder, name) for name in names}, recorder.mode.read
    recorder.takes_floats = recorder.takes_ints = recorder.takes_truths = True
    try:
        yield
    finally:
        vars(recorder).update(kept)
        recorder.mode.read = read


class TensorExpressions(SizeExpressions):
    """Writes expressions as tensors. `numbers`: the NumberNodes, which have the tensors behind symbols, and write what
    depends on no tensor as numbers."""

    def __init__(self, context: CaptureContext, numbers: Any) -> None:
        super().__init__(numbers.tensor_of_symbol, self._operator, ConstantValue)
        self._context = context
        self._numbers = numbers

    def _write(self, value: Any) -> Any:
        if isinstance(value, Expr) and self.is_truth(value):
            return self._converted(self.truth(value), torch.int64)
        if isinstance(value, Expr | FloatExpr) and not self._numbers.is_computed_in_tensors(value):
            return self._numbers.scalar_of(value)
        return super()._write(value)

    def truth(self, value: Any) -> Any:
        if value.function is bool and isinstance(value.operands[0], Symbol):
            return self._numbers.tensor_of_symbol(value.operands[0])
        return super().truth(value)

    def _operator(self, function: Any, *args: Value) -> Value:
        if function in _DTYPES:
            return self._converted(args[0], _DTYPES[function])
        if function in _BETWEEN_TENSORS:
            return self._between_tensors(function, *map(self._as_tensor, args))
        if function in _CHOICES:
            first, second = args
            better = self._recorded(_CHOICES[function], second, first)
            return self._recorded(torch.where, better, second, first)
        return self._recorded(_FUNCTIONS.get(function, function), *args)

    def _between_tensors(self, function: Any, left: TensorValue, right: TensorValue) -> Value:
        made = self._recorded(function, left, right)
        if function is not operator.mod or not left.fake.dtype.is_floating_point:
            return made
        return self._recorded(torch.copysign, made, right)  # a zero has the divisor's sign

    def _as_tensor(self, value: Value) -> TensorValue:
        if isinstance(value, TensorValue):
            return value
        return self._numbers.scalar(value.constant(), torch.float64)  # type: ignore[no-any-return]

    def _converted(self, tensor: Value, dtype: torch.dtype) -> Value:
        return self._context.record_method("to", [tensor, ConstantValue(dtype)], {})

    def _recorded(self, function: Any, *args: Value) -> Value:
        return self._context.record_function(function, list(args), {})
