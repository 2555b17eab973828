"""Conditions on named sizes: whether they contradict each other, what follows from them, and numbers that satisfy them.

The search for numbers may miss a solution, and then proves nothing; `contradict` proves. Never here: running programs.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stator.base.errors import UsageError
from stator.shapes.conditions import Comparison, Condition, Conjunction, compare, divisibility
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr, ExprLike, FloorDiv, Mod, Symbol, as_expr
from stator.shapes.extrema import Max, Min
from stator.shapes.intervals import Bound

_MOST_REPAIRS = 40
_NEIGHBOURS = 40
_PAIRED = (*range(2, 13), 15, 16, 18, 20, 21, 24, 28, 30, 32, 36, 42, 48, 60, 64, 96, 120, 128, 210, 240, 256, 480, 512)
Values = dict[Symbol, int]
Ranges = Mapping[Symbol, tuple[Bound, Bound]]


def normal(condition: Condition, ranges: Ranges) -> Condition:
    """An equivalent comparison without positive factors that all terms share."""
    if not isinstance(condition, Comparison) or not isinstance(condition.expr, Expr):
        return condition
    monomials = list(condition.expr.terms())
    shared: list[Expr] = list(monomials[0]) if monomials else []
    for monomial in monomials[1:]:
        shared = [atom for atom in shared if atom in monomial]
    shared = [atom for atom in dict.fromkeys(shared) if isinstance(atom, Symbol) and ranges[atom][0] > 0]
    if not shared:
        return condition
    total = as_expr(0)
    for monomial, value in condition.expr.terms().items():
        left: list[Expr] = list(monomial)
        for atom in shared:
            left.remove(atom)
        term = as_expr(value)
        for factor in left:
            term = term * factor
        total = total + term
    return normal(compare(condition.relation, total, 0), ranges)


class _Multiples:
    """Names for quotients: where x % n == 0, x is n*q for a new symbol q."""

    def __init__(self, ranges: Ranges, conditions: Sequence[Condition]) -> None:
        self.ranges: dict[Symbol, tuple[Bound, Bound]] = dict(ranges)
        self.replaced: dict[Symbol, Expr] = {}
        for condition in conditions:
            for part in condition.parts if isinstance(condition, Conjunction) else (condition,):
                self._learn(self.rewrite(part))

    def rewrite(self, condition: Condition) -> Condition:
        if isinstance(condition, bool) or not condition.symbols:
            return condition
        if not isinstance(condition, Comparison):
            kind = type(condition)
            return kind(tuple(map(self.rewrite, condition.parts))) if self.replaced else condition
        if not isinstance(condition.expr, Expr):
            return condition.substitute(self.replaced)
        return normal(compare(condition.relation, condition.expr.substitute(self.replaced), 0), self.ranges)

    def _learn(self, condition: Condition) -> None:
        found = divisibility(condition)
        if found is None or found[2] != "==":
            return
        number, divisor, _ = found
        if not isinstance(number, Symbol) or number in as_expr(divisor).symbols:
            return
        low, high = self.ranges[number]
        least, most = as_expr(divisor).bounds(self.ranges)
        if least < 1 or low < 1:
            return
        quotient = Symbol(f"{number}/{divisor}")
        self.ranges[quotient] = (1 if math.isinf(most) else max(1, math.ceil(low / most)), high // least)
        self.replaced[number] = as_expr(divisor) * quotient


def _environment(ranges: Ranges, conditions: Sequence[Condition]) -> tuple[Environment, _Multiples]:
    """An environment that knows the conditions. Raises ValueError if they are seen to contradict each other."""
    multiples = _Multiples(ranges, conditions)
    environment = Environment()
    for symbol, (low, high) in multiples.ranges.items():
        environment.ranges[symbol] = (low, high)
    for symbol, expr in multiples.replaced.items():
        low, high = multiples.ranges[symbol]
        for bound in (compare(">=", expr, int(low)), compare(">=", int(high), expr)):
            environment.assume(bound)
    for condition in map(multiples.rewrite, conditions):
        environment.assume(condition)
        if isinstance(condition, Comparison) and condition.relation == "==" and isinstance(condition.expr, Expr):
            for one in (condition.expr, -condition.expr):  # `w // 32 == 1` bounds w, too
                environment.assume(compare(">=", one, 0))
    return environment, multiples


def contradict(ranges: Ranges, conditions: Sequence[Condition]) -> bool:
    """Whether no numbers satisfy all conditions. False if that is not seen."""
    try:
        _environment(ranges, conditions)
    except ValueError:
        return True
    except ZeroDivisionError:  # where a divisor is zero, conditions with it mean nothing
        return False
    return False


def implies(ranges: Ranges, known: Sequence[Condition], condition: Condition) -> bool:
    """Whether one condition follows from others. False if that is not seen."""
    try:
        environment, multiples = _environment(ranges, known)
        return environment.evaluate_static(multiples.rewrite(condition)) is True
    except ValueError:
        return True
    except ZeroDivisionError:
        return False


def bound_of(ranges: Ranges, known: Sequence[Condition], condition: Condition) -> Condition | None:
    """The bound that an inequality is, where other conditions leave one of its sides alone; else None."""
    if not isinstance(condition, Comparison) or condition.relation != "!=" or not isinstance(condition.expr, Expr):
        return None
    if any(ranges.get(symbol) == (0, 1) for symbol in condition.symbols):  # a truth of data is no size
        return None
    for one in (condition.expr, -condition.expr):
        if implies(ranges, known, compare(">=", one, 0)):
            return normal(compare(">=", one, 1), ranges)
    return None


def solve(ranges: Ranges, conditions: Sequence[Condition], start: Mapping[str, int]) -> dict[str, int] | None:
    """Values in range that satisfy all conditions, found by repairs of one size at a time from `start`."""
    values: Values = {symbol: start[symbol.name] for symbol in ranges if symbol.name in start}
    values.update({symbol: int(low) for symbol, (low, _) in ranges.items() if symbol not in values})
    began = dict(values)
    seen = {tuple(values.values())}
    for _ in range(_MOST_REPAIRS):
        broken = [condition for condition in conditions if not _holds(condition, values)]
        if not broken:
            return {symbol.name: value for symbol, value in values.items()}
        best: tuple[int, int, Values] | None = None
        for changed in _repairs(broken[0], values, ranges):
            if tuple(changed.values()) in seen:
                continue
            left = sum(not _holds(condition, changed) for condition in conditions)
            moved = sum(abs(changed[symbol] - began[symbol]) for symbol in ranges)
            if best is None or (left, moved) < best[:2]:
                best = (left, moved, changed)
        if best is None:
            return None
        values = best[2]
        seen.add(tuple(values.values()))
    return None


def _holds(condition: Condition, values: Values) -> bool:
    try:
        return condition if isinstance(condition, bool) else condition.holds(values)
    except (ZeroDivisionError, OverflowError):
        return False


def _repairs(condition: Any, values: Values, ranges: Ranges) -> Iterator[Values]:
    """Changes of one size after which this condition holds; changes of two if there are none of one."""
    found = False
    for changed in _changes_of_one(condition, values, ranges):
        found = True
        yield changed
    if found:
        return
    for first, second in itertools.combinations(sorted(condition.symbols, key=str), 2):
        for pair in itertools.product(_PAIRED, repeat=2):
            changed = {**values, first: pair[0], second: pair[1]}
            within = all(ranges[symbol][0] <= changed[symbol] <= ranges[symbol][1] for symbol in (first, second))
            if within and _holds(condition, changed):
                yield changed


def _changes_of_one(condition: Any, values: Values, ranges: Ranges) -> Iterator[Values]:
    for symbol in sorted(condition.symbols, key=str):
        low, high = ranges[symbol]
        for number in _candidates(condition, symbol, values, int(low)):
            if low <= number <= high and number != values[symbol]:
                changed = {**values, symbol: number}
                if _holds(condition, changed):
                    yield changed


def _candidates(condition: Any, symbol: Symbol, values: Values, low: int) -> Iterator[int]:
    """Where a linear condition changes its truth, the neighbours of the present value, and the smallest numbers."""
    now = values[symbol]
    for part in getattr(condition, "parts", (condition,)):
        if not isinstance(part.expr, Expr):
            continue
        here = part.expr.evaluate(values)
        for step in (1, max(1, now)):
            slope = (part.expr.evaluate({**values, symbol: now + step}) - here) / step
            if slope:
                zero = now - here / slope
                for base in (math.floor(zero), math.ceil(zero)):
                    yield from (base - 1, base, base + 1)
    yield from range(now + 1, now + _NEIGHBOURS)
    yield from range(now - 1, max(low, now - _NEIGHBOURS) - 1, -1)
    yield from range(low, low + _NEIGHBOURS)
    yield from (now * 2, now * 4, now * 8, now * 16, now * 32)


def to_sympy(value: ExprLike) -> Any:
    """The sympy expression; symbols are positive integers. Raises UsageError for sizes that are rounded floats."""
    sympy: Any = importlib.import_module("sympy")
    if not isinstance(value, Expr):
        return sympy.Integer(value)

    def atom(one: Any) -> Any:
        if isinstance(one, Symbol):
            return sympy.Symbol(one.name, integer=True, positive=True)
        if isinstance(one, FloorDiv):
            return sympy.floor(to_sympy(one.numerator) / to_sympy(one.denominator))
        if isinstance(one, Mod):
            return sympy.Mod(to_sympy(one.numerator), to_sympy(one.denominator))
        if isinstance(one, (Max, Min)):
            return (sympy.Max if isinstance(one, Max) else sympy.Min)(*map(to_sympy, one.args))
        raise UsageError(f"{one} has no sympy form")

    return sympy.Add(*(sympy.Mul(factor, *map(atom, monomial)) for monomial, factor in value.terms().items()))
