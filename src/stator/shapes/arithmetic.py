"""Python's functions of numbers as expressions: one arithmetic for the nodes of torch's symbolic numbers and for the
numbers of captured programs. Never here: knowledge about symbols, and which functions a caller may use."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from .conditions import Comparison, Condition, compare, conjunction, disjunction, negate, truth_of
from .expr import as_expr, floor_div, modulo
from .extrema import Max, Min
from .floats import ROUNDINGS, FloatExpr, Function, IntCall, as_float, float_operation, int_call

COMPARISONS: dict[Function, str] = {
    **{operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<="},
    **{operator.gt: ">", operator.ge: ">="},
}
CONNECTIVES: dict[Function, Any] = {operator.and_: conjunction, operator.or_: disjunction}
# Functions that have expressions for ints, beside powers. Divisors are not zero.
OF_INTS: dict[Function, Any] = {
    **{one: one for one in (operator.add, operator.sub, operator.mul, operator.neg)},
    **{abs: lambda one: Max.of(one, -one), operator.pos: as_expr, operator.index: as_expr, min: Min.of, max: Max.of},
    **{operator.floordiv: floor_div, operator.mod: modulo, float: as_float, **dict.fromkeys(ROUNDINGS, as_expr)},
    operator.truediv: lambda one, other: float_operation(operator.truediv, one, other),
}
_TO_FLOATS = frozenset((float, operator.truediv, math.sqrt, math.exp, math.log, math.pow))
_MOST_FACTORS = 4


def kind_of_result(function: Function, kinds: Iterable[type]) -> type:
    """The type of the result for numbers of these types, for functions of which it depends on the types alone."""
    kinds = set(kinds)
    if function in COMPARISONS or function in (bool, operator.not_):
        return bool
    if (function in CONNECTIVES or function is operator.xor) and kinds == {bool}:
        return bool
    if function in ROUNDINGS:
        return int
    return float if float in kinds or function in _TO_FLOATS else int


def applied(function: Function, operands: Iterable[Any], kind: type) -> Any:
    """The expression of `function(*operands)`, which has this type, on expressions, conditions and Python's numbers."""
    operands = list(operands)
    if kind is bool:
        return _truth(function, operands)
    numbers = list(map(as_int, operands))
    if not any(isinstance(one, FloatExpr | float) for one in numbers):
        if function is operator.pow and is_small_power(numbers[1]):
            return math.prod([as_expr(numbers[0])] * numbers[1])
        made = OF_INTS.get(function) if len(numbers) == 1 or function not in ROUNDINGS else None
        if made is not None:
            return made(*map(as_expr, numbers))
    elif function in (float, operator.pos):
        return numbers[0]
    return int_call(function, *operands) if kind is int else float_operation(function, *numbers)


def is_small_power(exponent: Any) -> bool:
    return type(exponent) is int and 0 <= exponent <= _MOST_FACTORS


def _truth(function: Function, operands: list[Any]) -> Condition:
    if function in (bool, operator.not_):
        (one,) = operands
        truth = one if isinstance(one, bool) or hasattr(one, "holds") else compare("!=", one, 0)
        return truth if function is bool else negate(truth)
    if function in CONNECTIVES:
        return CONNECTIVES[function](*operands)  # type: ignore[no-any-return]
    relation = "!=" if function is operator.xor else COMPARISONS.get(function)
    return truth_of(int_call(function, *operands)) if relation is None else compare(relation, *map(as_int, operands))


def as_int(value: Any) -> Any:
    """A condition as the int that equals it; other numbers unchanged."""
    if isinstance(value, bool):
        return int(value)
    if not hasattr(value, "holds"):
        return value
    if isinstance(value, Comparison) and value.relation == "!=" and isinstance(value.expr, IntCall):
        return value.expr
    return int_call(int, value)
