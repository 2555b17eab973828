"""Conditions on symbolic numbers: comparisons with zero in a normal form, and their conjunctions and disjunctions.

Pure data. `environment.py` knows which conditions hold, and which have been relied on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Union

from .expr import ExprLike, Symbol, as_expr, from_sorted
from .floats import FloatExpr, float_operation

Condition = Union["Comparison", "Conjunction", "Disjunction", bool]

_NEGATED = {"==": "!=", "!=": "=="}
_HOLDS: dict[str, Callable[[Any], bool]] = {
    "==": lambda value: value == 0,
    "!=": lambda value: value != 0,
    ">=": lambda value: value >= 0,
    ">": lambda value: value > 0,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """`expr relation 0`. Integers are compared by "==", "!=" and ">=", floats also by ">"."""

    relation: str
    expr: Any  # Expr or FloatExpr

    @property
    def symbols(self) -> frozenset[Symbol]:
        return self.expr.symbols

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        return bool(_HOLDS[self.relation](self.expr.evaluate(values)))

    def substitute(self, replacements: Mapping[Symbol, ExprLike]) -> Comparison:
        return Comparison(self.relation, self.expr.substitute(replacements))

    def __str__(self) -> str:
        return f"{self.expr} {self.relation} 0"


@dataclass(frozen=True, slots=True)
class _Compound:
    """At least two conditions, the parts. `word` joins them in Python."""

    parts: tuple[Any, ...]
    word: ClassVar[str]

    @property
    def symbols(self) -> frozenset[Symbol]:
        return frozenset().union(*(part.symbols for part in self.parts))

    def substitute(self, replacements: Mapping[Symbol, ExprLike]) -> Any:
        return type(self)(tuple(part.substitute(replacements) for part in self.parts))

    def __str__(self) -> str:
        return "(" + f" {self.word} ".join(map(str, self.parts)) + ")"


class Conjunction(_Compound):
    """All parts hold."""

    __slots__ = ()
    word = "and"

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        return all(part.holds(values) for part in self.parts)


class Disjunction(_Compound):
    """Some part holds."""

    __slots__ = ()
    word = "or"

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        return any(part.holds(values) for part in self.parts)


def compare(relation: str, left: Any, right: Any) -> Condition:
    """`left relation right` for ==, !=, <, <=, > and >=, on integer or floating-point expressions, or numbers."""
    if isinstance(left, (FloatExpr, float)) or isinstance(right, (FloatExpr, float)):
        return _compare_floats(relation, left, right)
    if relation in ("==", "!="):
        return _normal(relation, as_expr(left) - right)
    if relation in ("<", "<="):
        left, right = right, left
    return _normal(">=", as_expr(left) - right - (1 if relation in ("<", ">") else 0))


def _compare_floats(relation: str, left: Any, right: Any) -> Condition:
    if relation in ("<", "<="):
        left, right, relation = right, left, ">" if relation == "<" else ">="
    gap = float_operation("-", left, right)
    return Comparison(relation, gap) if isinstance(gap, FloatExpr) else bool(_HOLDS[relation](gap))


def _normal(relation: str, expr: ExprLike) -> Condition:
    """The normal form: coefficients without a common factor, the first positive where the sign does not matter."""
    expr = as_expr(expr)
    if expr.constant is not None:
        return _HOLDS[relation](expr.constant)
    terms = expr._terms
    factor = math.gcd(*(value for monomial, value in terms if monomial))
    if relation != ">=":
        if terms[0][1] < 0:
            factor = -factor
        if expr.offset % factor:
            return relation == "!="
    if factor == 1:
        return Comparison(relation, expr)
    scaled = [(monomial, value // factor) for monomial, value in terms]
    return Comparison(relation, from_sorted(tuple(term for term in scaled if term[1])))


def negate(condition: Condition) -> Condition:
    if isinstance(condition, bool):
        return not condition
    if isinstance(condition, Conjunction):
        return Disjunction(tuple(negate(part) for part in condition.parts))
    if isinstance(condition, Disjunction):
        return Conjunction(tuple(negate(part) for part in condition.parts))
    if condition.relation in _NEGATED:
        return Comparison(_NEGATED[condition.relation], condition.expr)
    if isinstance(condition.expr, FloatExpr):
        return Comparison(">" if condition.relation == ">=" else ">=", float_operation("-", 0.0, condition.expr))
    return _normal(">=", -condition.expr - 1)


def conjunction(*conditions: Condition) -> Condition:
    """The conjunction; True without conditions."""
    return _joined(Conjunction, True, conditions)


def disjunction(*conditions: Condition) -> Condition:
    """The disjunction; False without conditions."""
    return _joined(Disjunction, False, conditions)


def _joined(kind: type[Conjunction | Disjunction], neutral: bool, conditions: tuple[Condition, ...]) -> Condition:
    parts: dict[Any, None] = {}
    for condition in conditions:
        if condition is (not neutral):
            return condition
        if condition is not neutral:
            parts.update(dict.fromkeys(condition.parts if isinstance(condition, kind) else (condition,)))
    return kind(tuple(parts)) if len(parts) > 1 else next(iter(parts), neutral)
