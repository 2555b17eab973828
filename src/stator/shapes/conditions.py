"""Conditions on symbolic numbers: comparisons with zero in a normal form, and their conjunctions and disjunctions; as
a person would write them (`seq <= 512` instead of `-seq + 512 >= 0`), and as one Python function.

Pure data. `environment.py` knows which conditions hold, and which have been relied on.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Union

from .expr import Constant, Expr, ExprLike, FloorDiv, Mod, Symbol, as_expr, from_sorted
from .extrema import Max, Min
from .floats import INFIX, FloatExpr, IntCall, int_call, scaled

Condition = Union["Comparison", "Conjunction", "Disjunction", bool]

_NEGATED = {"==": "!=", "!=": "=="}
_HOLDS: dict[str, Callable[[Any], bool]] = {
    "==": lambda value: value == 0,
    "!=": lambda value: value != 0,
    ">=": lambda value: value >= 0,
}
_EXACT = 1 << 52  # of ints below, floats are exact
# Normal forms by relation and difference: a compilation asks for each about three times
_compared: dict[tuple[str, Expr], Condition] = {}
_OF_FLOATS: dict[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Comparison:
    """`expr relation 0`, by "==", "!=" or ">="."""

    relation: str
    expr: Expr

    @property
    def symbols(self) -> frozenset[Symbol]:
        return self.expr.symbols

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        return bool(_HOLDS[self.relation](self.expr.evaluate(values)))

    def substitute(self, replacements: Mapping[Symbol, ExprLike]) -> Comparison:
        return Comparison(self.relation, as_expr(self.expr.substitute(replacements)))

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


def only_value(condition: Condition) -> int | None:
    """The number that a condition on one symbol requires, if it is linear and requires one."""
    if not isinstance(condition, Comparison) or condition.relation != "==" or len(condition.symbols) != 1:
        return None
    (symbol,) = condition.symbols
    at_zero, at_one = (condition.expr.evaluate({symbol: number}) for number in (0, 1))
    number = at_zero // (at_zero - at_one) if at_zero != at_one else 0
    return number if condition.holds({symbol: number}) else None


def compare(relation: str, left: Any, right: Any) -> Condition:
    """`left relation right` for ==, !=, <, <=, > and >=, on integer or floating-point expressions, or numbers."""
    if isinstance(left, (FloatExpr, float)) or isinstance(right, (FloatExpr, float)):
        return _compare_floats(relation, left, right)
    if relation in ("==", "!="):
        difference = as_expr(left) - right
    else:
        if relation in ("<", "<="):
            left, right = right, left
        difference = as_expr(left) - right - (1 if relation in ("<", ">") else 0)
        relation = ">="
    found = _compared.get((relation, difference))
    if found is None:
        found = _compared[relation, difference] = _normal(relation, difference)
    return found


def _compare_floats(relation: str, left: Any, right: Any) -> Condition:
    if relation in (">", ">="):
        left, right, relation = right, left, "<" if relation == ">" else "<="
    if relation == "!=":
        return negate(_compare_floats("==", left, right))
    return truth_of(int_call(_OF_FLOATS[relation], left, right))


def truth_of(number: Expr) -> Condition:
    """Whether an int is not zero."""
    return compare("!=", number, 0)


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
    if factor != 1:
        scaled = [(monomial, value // factor) for monomial, value in terms]
        expr = from_sorted(tuple(term for term in scaled if term[1]))
    found = _by_parts(relation, expr)
    if found is not None:
        return found
    return _without_quotient(expr) if relation == ">=" else Comparison(relation, expr)


def _by_parts(relation: str, expr: Expr) -> Condition | None:
    """A comparison of a*min(...) + b, or a*max(...) + b, by comparisons of the arguments: min(n, 4) >= 4 is n >= 4. An
    equation has this form where it holds at a bound: min(n, 4) == 4 is n >= 4, too. None for other expressions."""
    found = [(one[0], value) for one, value in expr._terms if len(one) == 1 and isinstance(one[0], (Min, Max))]
    if len(found) != 1:
        return None
    extremum, factor = found[0]
    rest = expr - extremum * factor
    parts = [rest + as_expr(part) * factor for part in extremum.args]
    least = isinstance(extremum, Min) is (factor > 0)  # expr is the least of the parts, else the greatest
    if relation == ">=":
        return (conjunction if least else disjunction)(*(compare(">=", part, 0) for part in parts))
    others = [part for part in parts if part.constant != 0]
    if len(others) == len(parts):
        return _without_number(relation, parts, least)
    reached = conjunction(*(compare(">=", part if least else -part, 0) for part in others))
    return reached if relation == "==" else negate(reached)


def _without_number(relation: str, parts: list[Expr], least: bool) -> Condition | None:
    """An equation of the least or greatest of these parts, some of which are numbers: min(n, 4) == 0 is n == 0."""
    rest = [part for part in parts if part.constant is None]
    numbers = [part.constant for part in parts if part.constant is not None]
    if not numbers:
        return None
    if ((min if least else max)(numbers) < 0) is least:
        return relation == "!="
    return compare(relation, (Min if least else Max).of(*rest), 0)


def _without_quotient(expr: Expr) -> Condition:
    """expr >= 0, where n//d >= k for a number d > 0 is n >= k*d; and floor(n * c) >= k that of the least such n."""
    monomial, sign = expr._terms[0]
    atom = monomial[0]
    if isinstance(atom, FloorDiv) and isinstance(atom.denominator, int) and atom.denominator > 0 and abs(sign) == 1:
        rest = expr - atom * sign
        if rest.constant is not None:
            end = rest * atom.denominator + (0 if sign > 0 else atom.denominator - 1)
            return _normal(">=", atom.numerator * sign + end)
    found, rest = scaled(atom), expr - atom * sign
    if found is not None and abs(sign) == 1 and rest.constant is not None:
        number, factor = found
        wanted = -rest.constant if sign > 0 else rest.constant + 1
        if abs(wanted) < _EXACT and abs(wanted / factor) < _EXACT:
            least = math.ceil(wanted / factor)
            while atom.function(least * factor) < wanted:  # type: ignore[attr-defined]
                least += 1
            while atom.function((least - 1) * factor) >= wanted:  # type: ignore[attr-defined]
                least -= 1
            return _normal(">=", number - least if sign > 0 else -number + (least - 1))
    return Comparison(">=", expr)


def negate(condition: Condition) -> Condition:
    if isinstance(condition, bool):
        return not condition
    if isinstance(condition, Conjunction):
        return Disjunction(tuple(negate(part) for part in condition.parts))
    if isinstance(condition, Disjunction):
        return Conjunction(tuple(negate(part) for part in condition.parts))
    if condition.relation in _NEGATED:
        return Comparison(_NEGATED[condition.relation], condition.expr)
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
            if isinstance(condition, Comparison) and negate(condition) in parts:
                return not neutral
            parts.update(dict.fromkeys(condition.parts if isinstance(condition, kind) else (condition,)))
    return kind(tuple(parts)) if len(parts) > 1 else next(iter(parts), neutral)


_TURNED = {">=": "<=", "==": "==", "!=": "!="}


def text_of(condition: Condition) -> str:
    """A comparison with positive terms on both sides; parts of compounds in parentheses."""
    if isinstance(condition, (Conjunction, Disjunction)):
        return f" {condition.word} ".join(f"({text_of(part)})" for part in condition.parts)
    found = divisibility(condition)
    if found is not None:
        number, divisor, relation = found
        return f"{_factor(number)} % {_factor(as_expr(divisor))} {relation} 0"
    if isinstance(condition, Comparison):
        atom = condition.expr
        if isinstance(atom, IntCall) and atom.is_truth and condition.relation != ">=":
            return _called(atom, condition.relation == "==")
        return _comparison(condition.relation, condition.expr)
    return str(condition)


def _called(truth: IntCall, negated: bool) -> str:
    if negated and truth.function is operator.eq:
        return " != ".join(map(str, truth.operands))
    text = str(truth)[1:-1] if truth.function in INFIX else str(truth)
    return f"not {text}" if negated else text


def _comparison(relation: str, expr: Expr) -> str:
    left, right = as_expr(0), as_expr(0)
    for monomial, value in expr.terms().items():
        if monomial:
            term = as_expr(abs(value))
            for atom in monomial:
                term = term * atom
            left, right = (left + term, right) if value > 0 else (left, right + term)
    offset = expr.offset
    if not right.symbols:
        return f"{left} {relation} {-offset}"
    if not left.symbols:
        return f"{right} {_TURNED[relation]} {offset}"
    if relation == ">=" and offset == -1:
        return f"{left} > {right}"
    return f"{left + offset} {relation} {right}" if offset > 0 else f"{left} {relation} {right + -offset}"


def _factor(expr: Expr) -> str:
    return str(expr) if len(expr.terms()) == 1 else f"({expr})"


def divisibility(condition: Condition) -> tuple[Expr, Any, str] | None:
    """(x, n, relation) of a condition `x % n == 0` or `x % n != 0`, in one of its forms."""
    if not isinstance(condition, Comparison) or condition.relation not in ("==", "!="):
        return None
    for monomial, value in condition.expr.terms().items():
        for atom in monomial:
            if isinstance(atom, Mod) and len(condition.expr.terms()) == 1 and monomial == (atom,):
                return atom.numerator, atom.denominator, condition.relation
            if isinstance(atom, FloorDiv):
                whole = as_expr(value)
                for factor in monomial:
                    whole = whole * factor
                for sign in (1, -1):
                    product = atom * as_expr(atom.denominator) * sign
                    if whole == product and condition.expr - whole == atom.numerator * -sign:
                        return atom.numerator, atom.denominator, condition.relation
    return None


def is_python(value: Any) -> bool:
    """Whether the text of a condition or expression is a Python expression of its symbols."""
    if isinstance(value, (int, Symbol)):
        return True
    if isinstance(value, Comparison):
        return is_python(value.expr)
    if isinstance(value, (FloorDiv, Mod)):
        return is_python(value.numerator) and is_python(value.denominator)
    if isinstance(value, (Min, Max)):
        return all(map(is_python, value.args))
    if isinstance(value, (Conjunction, Disjunction)):
        return all(map(is_python, value.parts))
    return type(value) in (Expr, Constant) and all(map(is_python, value.atoms))
