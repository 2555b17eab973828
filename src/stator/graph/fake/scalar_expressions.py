"""Numbers in tensors without dimensions that follow from sizes, such as `torch.ceil(n / stride) * stride - n` with a
stride in a buffer: their expressions, so that a program may use them as sizes and branch on them.

On the CPU, where each operator rounds as IEEE 754 says. Other operators, and integers that might overflow, end this.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.registry import Registry
from stator.shapes.arithmetic import applied
from stator.shapes.conditions import compare
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr, ExprLike, as_expr
from stator.shapes.floats import FloatExpr, as_float, float_operation, to_single
from stator.shapes.sym_node import SymbolicNode

from .fake_tensor import FakeTensor

aten = torch.ops.aten
_INTS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
_FLOATS = frozenset((torch.float32, torch.float64))


@dataclass(frozen=True, slots=True)
class Scalar:
    """The number in a fake tensor: an Expr, a FloatExpr, or a Condition in a tensor of bools. version: of its storage.
    known_from: the origins of contents that the number relies on, as FakeTensor.known_from."""

    expression: Any
    environment: Environment
    version: int
    known_from: frozenset[Any]


class _NotFollowed(Exception):
    """Private to this module."""


# Makes the expression of an operator's result from the numbers and dtypes of its operands, and the result's dtype.
_Formula = Callable[["_Operands"], Any]
_formulas: Registry[OpOverload, _Formula] = Registry("operator whose result follows from sizes")


def scalar_of(fake: Any) -> Scalar | None:
    """The number in a tensor that follows from sizes, until the tensor is written."""
    found: Scalar | None = fake.scalar if isinstance(fake, FakeTensor) else None
    return found if found is not None and found.version == fake.fake_storage.version else None


def follow_scalar(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], result: FakeTensor) -> None:
    """Note the number in an operator's result, which has no dimensions, if it follows from sizes."""
    formula = _formulas.get(func)
    if formula is None or result.meta.device.type != "cpu":
        return
    operands = _Operands(args, kwargs, result.meta.dtype)
    try:
        operands.read()
        if operands.environment is not None:
            number, environment = formula(operands), operands.environment
            number = environment.simplify(number) if isinstance(number, Expr) else number
            result.scalar = Scalar(number, environment, result.fake_storage.version, operands.known_from)
    except _NotFollowed:
        pass


class _Operands:
    """The operands of one operator as numbers and expressions."""

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> None:
        self.args, self.kwargs, self.dtype = args, kwargs, dtype
        self.environment: Environment | None = None
        self.known_from: frozenset[Any] = frozenset()
        self.numbers: list[Any] = []

    def read(self) -> None:
        self.numbers = [self._read(one) for one in self.args]

    def _read(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            return self._read_tensor(value)
        if type(value) in (torch.SymInt, torch.SymFloat) and isinstance(value.node, SymbolicNode):
            self.environment = value.node.environment
            return value.node.value
        if value is None or type(value) in (int, float):
            return value
        raise _NotFollowed

    def _read_tensor(self, fake: FakeTensor) -> Any:
        scalar = scalar_of(fake)
        if scalar is not None:
            self.environment, self.known_from = scalar.environment, self.known_from | scalar.known_from
            return scalar.expression
        known = fake.tracked_value()
        if known is None or known.dim() or known.dtype not in _INTS | _FLOATS:
            raise _NotFollowed
        self.known_from |= fake.known_from
        return known.item()

    def only(self, **allowed: Any) -> None:
        """Check that no further argument has another value than these, and None."""
        for name, value in self.kwargs.items():
            if value is not None and (type(value) is torch.SymInt or value != allowed.get(name)):
                raise _NotFollowed

    def ints(self) -> list[Expr]:
        """The operands, all whole numbers."""
        if any(not isinstance(one, Expr) and type(one) is not int for one in self.numbers):
            raise _NotFollowed
        return [as_expr(one) for one in self.numbers]

    def result(self, number: Any) -> Any:
        """A number of the result's dtype. Integers must not overflow."""
        return _of_dtype(number, self.dtype, self.environment)


def _of_dtype(number: Any, dtype: torch.dtype, environment: Environment | None) -> Any:
    if dtype in _FLOATS:
        number = as_float(number) if isinstance(number, Expr | int) else number
        return float_operation(to_single, number) if dtype is torch.float32 else number
    if dtype not in _INTS or not isinstance(number, Expr | int):
        raise _NotFollowed
    limits = torch.iinfo(dtype)
    low, high = _bounds(number, environment)
    if low < limits.min or high > limits.max:
        raise _NotFollowed
    return number


def _bounds(number: ExprLike, environment: Environment | None) -> tuple[Any, Any]:
    expression = as_expr(number)
    assert environment is not None
    return expression.bounds({symbol: environment.limited_range(symbol) for symbol in expression.symbols})


def _arithmetic(function: Callable[..., Any], *, backwards: bool = False) -> _Formula:
    def formula(operands: _Operands) -> Any:
        operands.only(alpha=1)
        numbers = operands.numbers[:2]
        if operands.numbers[2:] not in ([], [1]):
            raise _NotFollowed
        if operands.dtype in _FLOATS and function not in (max, min):
            numbers = [operands.result(one) for one in numbers]
            kind: type = float
        else:
            numbers, kind = operands.ints()[:2], int
        return operands.result(applied(function, reversed(numbers) if backwards else numbers, kind))

    return formula


def _quotient(operands: _Operands) -> Any:
    operands.only()
    top, bottom = (operands.result(one) for one in operands.numbers)
    _check_divisor(operands.numbers[1], operands)
    return operands.result(float_operation(operator.truediv, top, bottom))


def _of_quotient(function: Callable[..., Any]) -> _Formula:
    def formula(operands: _Operands) -> Any:
        operands.only(rounding_mode="floor")
        numbers = operands.ints()
        _check_divisor(numbers[1], operands)
        return operands.result(applied(function, numbers, int))

    return formula


def _check_divisor(number: Any, operands: _Operands) -> None:
    if not isinstance(number, Expr | int) or _bounds(number, operands.environment)[0] < 1:
        raise _NotFollowed


def _rounded(function: Callable[[float], int]) -> _Formula:
    def formula(operands: _Operands) -> Any:
        (number,) = operands.numbers
        assert operands.environment is not None
        if isinstance(number, FloatExpr):
            number = operands.environment.without_floats(applied(function, [number], int))
        return operands.result(number)

    return formula


def _converted(operands: _Operands) -> Any:
    operands.only(dtype=operands.dtype, layout=torch.strided, device=torch.device("cpu"), pin_memory=False)
    (number,) = operands.numbers
    if operands.dtype in _INTS and isinstance(number, FloatExpr):
        assert operands.environment is not None
        number = operands.environment.without_floats(applied(math.trunc, [number], int))
    if not isinstance(number, Expr | FloatExpr):
        raise _NotFollowed
    return operands.result(number)


def _clamped(operands: _Operands) -> Any:
    operands.only()
    number, low, high = [*operands.numbers, None, None][:3]
    for function, bound in ((max, low), (min, high)):
        if bound is not None:
            if not isinstance(number, Expr) or not isinstance(bound, Expr | int):
                raise _NotFollowed
            number = applied(function, [number, bound], int)
    return operands.result(number)


def _comparison(relation: str) -> _Formula:
    def formula(operands: _Operands) -> Any:
        one, other = operands.ints()
        return compare(relation, one, other)

    return formula


def _same(operands: _Operands) -> Any:
    operands.only(memory_format=torch.preserve_format)
    return operands.numbers[0]


def _register() -> None:
    add, subtract, multiply = (_arithmetic(one) for one in (operator.add, operator.sub, operator.mul))
    for packet, formula in ((aten.add, add), (aten.sub, subtract), (aten.mul, multiply)):
        _formulas.register(packet.Tensor, packet.Scalar)(formula)
    _formulas.register(aten.rsub.Tensor, aten.rsub.Scalar)(_arithmetic(operator.sub, backwards=True))
    _formulas.register(aten.neg.default)(_arithmetic(operator.neg))
    _formulas.register(aten.maximum.default)(_arithmetic(max))
    _formulas.register(aten.minimum.default)(_arithmetic(min))
    _formulas.register(aten.div.Tensor, aten.div.Scalar)(_quotient)
    quotient = _of_quotient(operator.floordiv)
    _formulas.register(aten.floor_divide.default, aten.floor_divide.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode)(
        quotient
    )
    _formulas.register(aten.remainder.Tensor, aten.remainder.Scalar)(_of_quotient(operator.mod))
    for packet, rounding in ((aten.floor, math.floor), (aten.ceil, math.ceil), (aten.trunc, math.trunc)):
        _formulas.register(packet.default)(_rounded(rounding))
    _formulas.register(aten._to_copy.default, aten.scalar_tensor.default)(_converted)
    _formulas.register(aten.clamp.default, aten.clamp_min.default)(_clamped)
    _formulas.register(aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh.default)(_same)
    for relation, packet in (("==", aten.eq), ("!=", aten.ne), ("<", aten.lt), ("<=", aten.le), (">", aten.gt)):
        _formulas.register(packet.Tensor, packet.Scalar)(_comparison(relation))
    _formulas.register(aten.ge.Tensor, aten.ge.Scalar)(_comparison(">="))


_register()
