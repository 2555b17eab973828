"""Floating-point expressions over symbols, and integers that Python's functions make of them.

A tree, evaluated in Python's order: nothing is reordered, so that `floor(n * 0.7)` has Python's value for each n, and a
comparison Python's truth also for infinity and NaN.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

from .expr import Atom, Expr, ExprLike, FloorDiv, Mod, Ranges, Symbol, constant, floor_div, interned, interned_atom
from .extrema import Max, Min
from .intervals import Bound

FloatLike = Union["FloatExpr", float]
Function = Callable[..., Any]
INFIX: dict[Function, str] = {
    **{operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"},
    **{operator.floordiv: "//", operator.mod: "%", operator.pow: "**"},
    **{operator.eq: "==", operator.lt: "<", operator.le: "<="},
}
ROUNDINGS: tuple[Function, ...] = (math.floor, math.ceil, math.trunc, int, round)
DOWN: tuple[Function, ...] = (math.floor, math.trunc, int)  # if the float is not negative
# Numbers for which a quotient and the rounded sums behind it stay on their side of each integer, with 53 and 24 bits.
_EXACT, _EXACT_SINGLE = 1 << 51, 1 << 22
_MOST_SUMS = 3  # behind a quotient
_UNKNOWN = (math.nan, math.nan)


class FloatExpr:
    """`function` of the operands: numbers, expressions and conditions. A symbol that stands for a float has no
    function."""

    __slots__ = ("_hash", "depth", "function", "functions", "operands", "symbols")

    def __init__(self, function: Function | None, operands: tuple[Any, ...]) -> None:
        self.function, self.operands = function, operands
        self.symbols: frozenset[Symbol] = _symbols(operands)
        self.depth: int = 1 + max(map(depth_of, operands))
        self.functions: frozenset[Function | None] = frozenset((function,)).union(*map(functions_of, operands))
        self._hash = hash(self._key())

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, FloatExpr) and self._hash == other._hash and self._key() == other._key()

    def __hash__(self) -> int:
        return self._hash

    def _key(self) -> tuple[Any, ...]:
        return self.function, *map(_operand_key, self.operands)

    def evaluate(self, values: Mapping[Symbol, Any]) -> Any:
        if self.function is None:
            return values[self.operands[0]]
        return self.function(*[_evaluated(operand, values) for operand in self.operands])

    def substitute(self, replacements: Mapping[Symbol, ExprLike]) -> FloatLike:
        if self.symbols.isdisjoint(replacements) or self.function is None:
            return self
        return float_operation(self.function, *_substituted(self.operands, replacements))

    def bounds(self, ranges: Ranges) -> tuple[float, float]:
        """Inclusive bounds by interval arithmetic; rounding is monotonic, so they hold for floats too. NaN twice if
        there are none, or if the value may be NaN."""
        known = [_bounds(operand, ranges) for operand in self.operands]
        if any(math.isnan(end) for pair in known for end in pair):
            return _UNKNOWN
        if self.function is None or self.function is float:
            low, high = known[0]
            return (low, high) if self.function is float or math.isfinite(low + high) else _UNKNOWN
        if self.function is operator.neg:
            return -known[0][1], -known[0][0]
        if self.function is to_single:
            return to_single(known[0][0]), to_single(known[0][1])
        return self._bounds_of_two(*known) if len(known) == 2 else _UNKNOWN

    def _bounds_of_two(self, left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
        (a, b), (c, d) = left, right
        function = self.function
        if function is operator.add:
            return a + c, b + d
        if function is operator.sub:
            return a - d, b - c
        if function is operator.mul or (function in (operator.truediv, quotient) and (c > 0 or d < 0)):
            corners = [function(x, y) for x in (a, b) for y in (c, d)]  # type: ignore[misc]
            return _UNKNOWN if any(map(math.isnan, corners)) else (min(corners), max(corners))
        if function in (min, max):
            return function(a, c), function(b, d)  # type: ignore[misc]
        return _UNKNOWN

    def __str__(self) -> str:
        return str(self.operands[0]) if self.function is None else _text(self.function, self.operands)


def quotient(dividend: float, divisor: float) -> float:
    """The quotient as in C++, where formulas of gradients may divide by zero."""
    if divisor:
        return dividend / divisor
    undefined = not dividend or math.isnan(dividend)
    return math.nan if undefined else math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)


def to_single(number: float) -> float:
    """The number rounded to a float of 32 bits. Sums, products and quotients that are rounded from 64 bits are those
    of 32 bits."""
    return ctypes.c_float(number).value


def depth_of(value: Any) -> int:
    """How many functions of Python are nested in an expression, a condition or a number."""
    if isinstance(value, FloatExpr | IntCall):
        return value.depth
    return max(map(depth_of, _parts_of(value)), default=0)


def functions_of(value: Any) -> frozenset[Function | None]:
    """The functions of Python in an expression, a condition or a number; None for symbols that stand for floats."""
    if isinstance(value, FloatExpr | IntCall):
        return value.functions
    return frozenset().union(*map(functions_of, _parts_of(value)))


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, FloorDiv | Mod):
        return value.numerator, value.denominator
    if isinstance(value, Max | Min):
        return value.args
    if isinstance(value, Expr):
        return () if isinstance(value, Symbol) else value.atoms - {value}
    return getattr(value, "parts", (value.expr,) if hasattr(value, "expr") else ())


def _symbols(operands: Iterable[Any]) -> frozenset[Symbol]:
    return frozenset().union(*(operand.symbols for operand in operands if hasattr(operand, "symbols")))


def _operand_key(operand: Any) -> Any:
    """1, 1.0 and True are equal in Python, and 0.0 equals -0.0, but results computed from them differ."""
    return operand if hasattr(operand, "symbols") else (type(operand), repr(operand))


def _evaluated(operand: Any, values: Mapping[Symbol, Any]) -> Any:
    if isinstance(operand, Expr | FloatExpr):
        return operand.evaluate(values)
    return operand.holds(values) if hasattr(operand, "holds") else operand


def _substituted(operands: Iterable[Any], replacements: Mapping[Symbol, ExprLike]) -> list[Any]:
    return [one.substitute(replacements) if hasattr(one, "substitute") else one for one in operands]


def _bounds(operand: Any, ranges: Ranges) -> tuple[float, float]:
    if isinstance(operand, Expr | FloatExpr):
        low, high = operand.bounds(ranges)
        return _as_bound(low), _as_bound(high)
    if hasattr(operand, "holds"):
        return 0, 1
    return (_as_bound(operand),) * 2 if isinstance(operand, int | float) else _UNKNOWN


def _as_bound(number: Bound) -> float:
    if isinstance(number, float) or abs(number) < 1 << 1023:
        return float(number)
    return math.inf if number > 0 else -math.inf


def _text(function: Function, operands: tuple[Any, ...]) -> str:
    if function in INFIX:
        left, right = (f"({one})" if isinstance(one, Expr) and not isinstance(one, Symbol) else one for one in operands)
        return f"({left} {INFIX[function]} {right})"
    return f"{getattr(function, '__name__', function)}({', '.join(map(str, operands))})"


def as_float(value: ExprLike) -> FloatLike:
    """An integer expression as a float."""
    number = value.constant if isinstance(value, Expr) else value
    return FloatExpr(float, (value,)) if number is None else float(number)


def exactly_rounded(value: IntCall, ranges: Ranges) -> Expr | None:
    """An equal expression of ints for a float that is rounded down, up or towards zero, if floats are exact within the
    ranges."""
    function = value.function
    found = _exact_ratio(value.operands[0]) if function in (*DOWN, math.ceil) and len(value.operands) == 1 else None
    if found is None:
        return None
    top, bottom, exact = found
    most = _EXACT_SINGLE if to_single in value.functions else _EXACT
    if max(abs(end) for one in exact for end in one.bounds(ranges)) + bottom > most:
        return None
    if function is math.ceil:
        return -floor_div(-top, bottom)
    return floor_div(top, bottom) if function is math.floor or top.bounds(ranges)[0] >= 0 else None


def _exact_ratio(value: Any, sums: int = _MOST_SUMS) -> tuple[Expr, int, list[Expr]] | None:
    """(t, b, ...) with value == t/b, as long as floats hold t, and the further expressions, exactly. None if there is
    none. `sums`: as many sums with ints follow at most, and then a rounding to an int. So the quotient by any number
    will do, and not of two's powers alone: it is farther from the next integer than all of these are rounded. -1 if
    something else follows."""
    if isinstance(value, Expr):
        return value, 1, [value]
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        over, under = value.as_integer_ratio()
        return constant(over), under, []
    if not isinstance(value, FloatExpr):
        return None
    function = value.function
    if function is to_single:
        return _exact_ratio(value.operands[0], sums)
    within = sums - 1 if function in (operator.add, operator.sub) and any(map(_is_int, value.operands)) else -1
    parts = [found for one in value.operands if (found := _exact_ratio(one, max(within, -1))) is not None]
    if len(parts) < len(value.operands):
        return None
    (top, bottom, held), *others = parts
    other, below, more = others[0] if others else (constant(1), 1, [])
    number = other.constant or 0
    if function in (operator.truediv, quotient) and number > 0 and (sums >= 0 or number & (number - 1) == 0):
        top, bottom = top * below, bottom * number
    elif function is operator.mul:
        top, bottom = top * other, bottom * below
    elif function in (operator.add, operator.sub):
        common = math.lcm(bottom, below)
        top = top * (common // bottom) + other * (common // below) * (1 if function is operator.add else -1)
        bottom = common
    elif function is not float:
        return None
    return top, bottom, [top, *held, *more]


def _is_int(value: Any) -> bool:
    """Whether an operand is a whole number."""
    if isinstance(value, FloatExpr):
        return value.function in (float, to_single) and _is_int(value.operands[0])
    return isinstance(value, Expr | int) or (isinstance(value, float) and value.is_integer())


def scaled(atom: Any) -> tuple[Expr, float] | None:
    """(e, c) of an int to which `e * c` is rounded, c a positive float: it grows with e."""
    product = atom.operands[0] if isinstance(atom, IntCall) and atom.function in ROUNDINGS else None
    if not isinstance(product, FloatExpr) or product.function is not operator.mul or len(atom.operands) != 1:
        return None
    number, factor = product.operands
    number = number.operands[0] if isinstance(number, FloatExpr) and number.function is float else number
    return (number, factor) if isinstance(number, Expr) and isinstance(factor, float) and factor > 0 else None


def float_operation(function: Function, *operands: Any) -> FloatLike:
    """A function of numbers, of which one is no int. Gives a number if all operands are numbers."""
    operands = tuple(map(_number, operands))
    if any(hasattr(operand, "symbols") for operand in operands):
        return FloatExpr(function, operands)
    return function(*operands)  # type: ignore[no-any-return]


def _number(operand: Any) -> Any:
    return operand.constant if isinstance(operand, Expr) and operand.constant is not None else operand


class IntCall(Atom):
    """The int, or the truth as 0 or 1, that a function of Python gives where no polynomial does; build with
    `int_call`."""

    __slots__ = ("depth", "function", "functions", "operands")
    function: Function
    operands: tuple[Any, ...]
    depth: int
    functions: frozenset[Function | None]

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        return int_call(self.function, *_substituted(self.operands, replacements))

    def _value(self, values: Mapping[Symbol, Any]) -> int:
        return int(self.function(*[_evaluated(one, values) for one in self.operands]))

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        function = self.function
        if function not in ROUNDINGS and function not in _COMPARED and not self.is_truth:
            return -math.inf, math.inf
        known = [_bounds(operand, ranges) for operand in self.operands]
        if function in _COMPARED:
            truth = _COMPARED[function](*known)
            return (0, 1) if truth is None else (int(truth), int(truth))
        if self.is_truth:
            return 0, 1
        if len(known) > 1 or math.isnan(known[0][0]):
            return -math.inf, math.inf
        low, high = known[0]
        return (function(low) if math.isfinite(low) else low), (function(high) if math.isfinite(high) else high)

    @property
    def is_truth(self) -> bool:
        """Whether the value is 0 or 1."""
        return self.function in _COMPARED or self.function is bool or self.is_of_condition

    @property
    def is_of_condition(self) -> bool:
        """Whether this is `int` of a condition."""
        return self.function is int and hasattr(self.operands[0], "holds")

    def __reduce__(self) -> tuple[object, ...]:
        return int_call, (self.function, *self.operands)


def int_call(function: Function, *operands: Any) -> Expr:
    """The int that a function of Python gives for these numbers, expressions and conditions."""
    operands = tuple(map(_number, operands))
    if not any(hasattr(operand, "symbols") for operand in operands):
        return constant(int(function(*operands)))
    first = operands[0]
    if function in ROUNDINGS and len(operands) == 1 and isinstance(first, FloatExpr) and first.function is float:
        first = first.operands[0]
        if isinstance(first, Expr):
            return first
    key = (IntCall, function, *map(_operand_key, operands))
    found = interned(key)
    if found is None:
        atom = object.__new__(IntCall)
        atom.function, atom.operands = function, operands
        atom.depth = 1 + max(map(depth_of, operands))
        atom.functions = frozenset((function,)).union(*map(functions_of, operands))
        found = interned_atom(atom, key, _text(function, operands), _symbols(operands))
    return found


def _equal(left: tuple[float, float], right: tuple[float, float]) -> bool | None:
    if left[1] < right[0] or right[1] < left[0]:
        return False
    return True if left[0] == left[1] == right[0] == right[1] else None


def _less(left: tuple[float, float], right: tuple[float, float]) -> bool | None:
    return True if left[1] < right[0] else False if left[0] >= right[1] else None


def _at_most(left: tuple[float, float], right: tuple[float, float]) -> bool | None:
    return True if left[1] <= right[0] else False if left[0] > right[1] else None


# the truth for all numbers between these bounds, if it is one
_COMPARED: dict[Function, Callable[..., bool | None]] = {
    operator.eq: _equal,
    operator.lt: _less,
    operator.le: _at_most,
}
