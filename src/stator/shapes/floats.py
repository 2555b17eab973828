"""Floating-point expressions over symbols, and integers made from them by rounding.

A tree, evaluated in Python's order: nothing is reordered, so that `floor(n * 0.7)` has Python's value for each n.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from .expr import Atom, Expr, ExprLike, Ranges, Symbol, constant, interned, interned_atom
from .intervals import Bound

FloatLike = Union["FloatExpr", float]
OPERATIONS: dict[str, Callable[[Any, Any], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "min": min,
    "max": max,
}
ROUNDINGS: dict[str, Callable[[float], int]] = {"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc}


@dataclass(frozen=True, slots=True, eq=False)
class FloatExpr:
    """`operation` is "symbol" (a symbol that stands for a float), "int" (an integer expression as a float) or one of
    `OPERATIONS` on two operands."""

    operation: str
    operands: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FloatExpr) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        """0.0 equals -0.0 in Python, but results computed from them differ."""
        return self.operation, *(repr(one) if type(one) is float else one for one in self.operands)

    @property
    def symbols(self) -> frozenset[Symbol]:
        return frozenset().union(
            *(operand.symbols for operand in self.operands if isinstance(operand, (Expr, FloatExpr)))
        )

    def evaluate(self, values: Mapping[Symbol, int]) -> float:
        numbers = [_number(operand, values) for operand in self.operands]
        return float(numbers[0]) if len(numbers) == 1 else OPERATIONS[self.operation](*numbers)

    def substitute(self, replacements: Mapping[Symbol, ExprLike]) -> FloatLike:
        if self.symbols.isdisjoint(replacements):
            return self
        return float_operation(
            self.operation,
            *(
                operand.substitute(replacements) if isinstance(operand, (Expr, FloatExpr)) else operand
                for operand in self.operands
            ),
        )

    def bounds(self, ranges: Ranges) -> tuple[float, float]:
        """Inclusive bounds by interval arithmetic; rounding is monotonic, so they hold for floats too."""
        if len(self.operands) == 1:
            low, high = self.operands[0].bounds(ranges)
            return float(low), float(high)
        (a, b), (c, d) = (_bounds(operand, ranges) for operand in self.operands)
        if self.operation == "+":
            return a + c, b + d
        if self.operation == "-":
            return a - d, b - c
        if self.operation == "*" or (self.operation == "/" and (c > 0 or d < 0)):
            function = OPERATIONS[self.operation]
            corners = [function(x, y) for x in (a, b) for y in (c, d)]
            if not any(math.isnan(corner) for corner in corners):
                return min(corners), max(corners)
        if self.operation in ("min", "max"):
            function = OPERATIONS[self.operation]
            return function(a, c), function(b, d)
        return -math.inf, math.inf

    def __str__(self) -> str:
        if self.operation == "symbol":
            return str(self.operands[0])
        if self.operation == "int":
            return f"float({self.operands[0]})"
        left, right = self.operands
        if self.operation in ("min", "max"):
            return f"{self.operation}({left}, {right})"
        return f"({left} {self.operation} {right})"


def _number(operand: Any, values: Mapping[Symbol, int]) -> Any:
    return operand.evaluate(values) if isinstance(operand, (Expr, FloatExpr)) else operand


def _bounds(operand: Any, ranges: Ranges) -> tuple[float, float]:
    return operand.bounds(ranges) if isinstance(operand, FloatExpr) else (operand, operand)


def as_float(value: ExprLike) -> FloatLike:
    """An integer expression as a float."""
    number = value.constant if isinstance(value, Expr) else value
    return FloatExpr("int", (value,)) if number is None else float(number)


def float_operation(operation: str, *operands: Any) -> FloatLike:
    """An operation on floats. Gives a number if all operands are numbers."""
    if operation == "int":
        return as_float(operands[0])
    if any(isinstance(operand, FloatExpr) for operand in operands):
        return FloatExpr(operation, operands)
    return OPERATIONS[operation](*operands)


class Rounded(Atom):
    """The integer from rounding a float by `rounding` ("floor", "ceil" or "trunc"); build with Rounded.of(...)."""

    __slots__ = ("operand", "rounding")
    operand: FloatExpr
    rounding: str

    @classmethod
    def of(cls, rounding: str, operand: FloatLike) -> Expr:
        if not isinstance(operand, FloatExpr):
            return constant(ROUNDINGS[rounding](operand))
        if operand.operation == "int":
            return operand.operands[0]
        key = (cls, rounding, operand)
        found = interned(key)
        if found is None:
            atom = object.__new__(cls)
            atom.operand, atom.rounding = operand, rounding
            found = interned_atom(atom, key, f"{rounding}({operand})", operand.symbols)
        return found

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        return Rounded.of(self.rounding, self.operand.substitute(replacements))

    def _value(self, values: Mapping[Symbol, int]) -> int:
        return ROUNDINGS[self.rounding](self.operand.evaluate(values))

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        low, high = self.operand.bounds(ranges)
        rounding = ROUNDINGS[self.rounding]
        return (rounding(low) if math.isfinite(low) else low), (rounding(high) if math.isfinite(high) else high)

    def __reduce__(self) -> tuple[object, ...]:
        return Rounded.of, (self.rounding, self.operand)
