"""Lower bounds of expressions whose symbols have ranges, beyond interval arithmetic. Never here: facts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .expr import Expr, FloorDiv, KnownBounds, Ranges, as_expr
from .extrema import Max, Min
from .floats import DOWN, scaled
from .intervals import UNBOUNDED, Bound

_MOST_QUOTIENTS = 4  # in one expression
_LARGEST_FACTOR = 1 << 20  # of a product with a float


def without_quotients(expr: Expr, ranges: Ranges) -> tuple[Expr, int]:
    """(e, n) with e <= n*expr for e without quotients by numbers: (a - b + 1)/b <= a//b <= a/b; and without floors
    of numbers times floats."""
    scale = 1
    for _ in range(_MOST_QUOTIENTS):
        found = next(
            (
                (monomial, value, atom, ends)
                for monomial, value in expr._terms
                for atom in monomial
                if (ends := _ends_of_quotient(atom, ranges)) is not None
            ),
            None,
        )
        if found is None:
            break
        monomial, value, atom, (least, most, divisor) = found
        others, whole = as_expr(1), as_expr(value)
        for factor in monomial:
            whole = whole * factor
        rest = list(monomial)
        rest.remove(atom)
        for factor in rest:
            others = others * factor
        if any(factor.bounds(ranges)[0] < 0 for factor in rest):
            break
        near = most if value < 0 else least - (divisor - 1)
        expr, scale = (expr - whole) * divisor + others * near * value, scale * divisor
    return expr, scale


def _ends_of_quotient(atom: Expr, ranges: Ranges) -> tuple[Expr, Expr, int] | None:
    """(a, b, d) with a//d <= atom <= b/d: of a quotient, or of a number >= 0 times a float, rounded down."""
    if isinstance(atom, FloorDiv):
        divisor = atom.denominator
        return (atom.numerator, atom.numerator, divisor) if isinstance(divisor, int) and divisor > 0 else None
    found = scaled(atom)
    if found is None or atom.function not in DOWN or found[0].bounds(ranges)[0] < 0:  # type: ignore[attr-defined]
        return None
    number, factor = found
    if factor > _LARGEST_FACTOR:
        return None
    near = math.floor(factor * _LARGEST_FACTOR)  # the next ints are farther away than rounding leads
    return number * (near - 1), number * (near + 2), _LARGEST_FACTOR


def above_corner(expr: Expr, ranges: Ranges) -> Bound:
    """With s = low + t for each symbol, a polynomial in t >= 0 without negative terms is least at t = 0."""
    bounds = {symbol: ranges.get(symbol, UNBOUNDED) for symbol in expr.symbols}
    corner = {symbol: symbol + int(low) for symbol, (low, _) in bounds.items() if low > -math.inf}
    shifted = expr.substitute(corner)
    above = KnownBounds(
        {symbol: (0, high - int(low)) if low > -math.inf else (low, high) for symbol, (low, high) in bounds.items()}
    )
    for monomial, value in shifted._terms:
        if monomial and (value < 0 or any(above[atom][0] < 0 for atom in monomial)):
            return -math.inf
    return shifted.offset


def below_extrema(expr: Expr) -> Iterator[Expr]:
    """Expressions that are never larger: max(a, b) is at least a, and -min(a, b) at least -a."""
    for monomial, value in expr._terms:
        if len(monomial) == 1 and isinstance(monomial[0], Max if value > 0 else Min):
            extremum = monomial[0]
            yield from (expr + (part - extremum) * value for part in extremum.args)  # type: ignore[attr-defined]


def by_bounds(relation: str, low: Bound, high: Bound) -> bool | None:
    """True or False if every value between these bounds compares with zero alike, else None."""
    if relation == ">=":
        return True if low >= 0 else False if high < 0 else None
    if low > 0 or high < 0:
        return relation == "!="
    if low == high:  # both zero
        return relation == "=="
    return None
