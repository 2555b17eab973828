"""Simplification under ranges: divisions, remainders and extrema that the bounds of the symbols decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from .expr import (
    Atom,
    Expr,
    ExprLike,
    FloorDiv,
    Mod,
    Monomial,
    Ranges,
    Symbol,
    as_expr,
    as_int,
    constant,
    divided_terms,
    floor_div,
    from_terms,
    modulo,
)
from .extrema import Max, Min
from .intervals import UNBOUNDED, Bound, floor_by
from .polynomial import accumulate, sort_key


def simplify(expr: ExprLike, ranges: Ranges) -> Expr:
    """An equal expression for every value of the symbols within `ranges`, with fewer divisions where possible."""
    expr = as_expr(expr)
    if not expr.symbols:
        return expr
    signature = tuple([ranges.get(symbol, UNBOUNDED) for symbol in _ordered_symbols(expr)])
    cached = expr._simplified
    if cached is not None and cached[0] == signature:
        return cached[1]
    total: dict[Monomial, int] = {}
    for monomial, value in expr._terms:
        if len(monomial) == 1:
            accumulate(total, _under(monomial[0], ranges)._terms, value)
        else:
            product: Expr = constant(value)
            for atom in monomial:
                product = product * _under(atom, ranges)
            accumulate(total, product._terms, 1)
    result = _recombined(from_terms(total))
    expr._simplified = (signature, result)
    return result


def _under(atom: Atom, ranges: Ranges) -> Expr:
    """Simplify an atom under ranges. An atom without a rule stays as it is."""
    rule = _RULES.get(type(atom))
    return atom if rule is None else rule(atom, ranges)


def loop_ranges(variables: Iterable[Symbol], sizes: Iterable[int]) -> dict[Symbol, tuple[Bound, Bound]]:
    """Ranges of loop variables from 0 to size - 1 (an empty loop counts as one iteration)."""
    return {symbol: (0, max(size - 1, 0)) for symbol, size in zip(variables, sizes, strict=True)}


def _ordered_symbols(expr: Expr) -> list[Symbol]:
    return sorted(expr.symbols, key=sort_key) if len(expr.symbols) > 1 else list(expr.symbols)


def _recombined(expr: Expr) -> Expr:
    """d*(x//d) + x%d -> x, for terms with matching coefficients."""
    mods = [
        (m[0], c) for m, c in expr._terms if len(m) == 1 and isinstance(m[0], Mod) and isinstance(m[0].denominator, int)
    ]
    for atom, value in mods:
        terms = dict(expr._terms)
        bottom: int = atom.denominator  # type: ignore[assignment, attr-defined]
        numerator: Expr = atom.numerator  # type: ignore[attr-defined]
        if (atom,) not in terms:
            continue
        whole = floor_div(numerator, bottom)._terms
        if all(terms.get(monomial) == c * bottom * value for monomial, c in whole):
            changed = dict(terms)
            accumulate(changed, atom._terms, -value)
            accumulate(changed, whole, -bottom * value)
            accumulate(changed, numerator._terms, value)
            expr = from_terms(changed)
            continue
        expr = _recombined_mods(expr, atom, bottom, numerator, value)
    return expr


def _recombined_mods(expr: Expr, atom: Atom, bottom: int, numerator: Expr, value: int) -> Expr:
    """a*((x//a) % b) + x%a -> x % (a*b)."""
    quotient = floor_div(numerator, bottom)
    for monomial, other in expr._terms:
        if len(monomial) == 1 and other == bottom * value and isinstance(monomial[0], Mod):
            upper = monomial[0]
            if upper.numerator is quotient and isinstance(upper.denominator, int):
                return expr - atom * value - upper * other + modulo(numerator, bottom * upper.denominator) * value
    return expr


def _symbol(atom: Symbol, ranges: Ranges) -> Expr:
    low, high = ranges.get(atom, UNBOUNDED)
    return constant(int(low)) if low == high else atom


def _floor_division(atom: FloorDiv, ranges: Ranges) -> Expr:
    top, bottom = _simplified_parts(atom, ranges)
    if not isinstance(bottom, int) or bottom <= 0:
        result = floor_div(top, bottom)
        low, high = result.bounds(ranges)
        return constant(int(low)) if low == high else result
    quotient, rest = divided_terms(top, bottom)
    for whole, left in ((quotient, rest), _nearest_division(quotient, rest, bottom)):
        low, high = (floor_by(bound, bottom) for bound in left.bounds(ranges))
        if low == high:
            return whole + int(low)
    for step in _steps(rest, bottom):
        coarse, fine = divided_terms(rest, step)
        low, high = fine.bounds(ranges)
        if low >= 0 and high < step:
            return quotient + simplify(floor_div(coarse, bottom // step), ranges)
    return quotient + floor_div(rest, bottom)


def _remainder(atom: Mod, ranges: Ranges) -> Expr:
    top, bottom = _simplified_parts(atom, ranges)
    if not isinstance(bottom, int) or bottom <= 0:
        result = modulo(top, bottom)
        if isinstance(result, Mod) and isinstance(bottom, Expr):
            whole = FloorDiv._of(result.numerator, bottom)._atom_bounds(ranges)
            if whole[0] == whole[1]:
                return result.numerator - bottom * int(whole[0])
        return result
    quotient, rest = divided_terms(top, bottom)
    for _, left in ((quotient, rest), _nearest_division(quotient, rest, bottom)):
        low, high = (floor_by(bound, bottom) for bound in left.bounds(ranges))
        if low == high:
            return left - int(low) * bottom
    for step in _steps(rest, bottom):
        coarse, fine = divided_terms(rest, step)
        low, high = fine.bounds(ranges)
        if low >= 0 and high < step:
            return simplify(modulo(coarse, bottom // step), ranges) * step + fine
    return modulo(rest, bottom)


def _least(atom: Min, ranges: Ranges) -> Expr:
    args = [simplify(arg, ranges) for arg in atom.args]
    for arg in args:
        if all(arg is other or (arg - other).bounds(ranges)[1] <= 0 for other in args):
            return arg
    return Min.of(*args)


def _greatest(atom: Max, ranges: Ranges) -> Expr:
    args = [simplify(arg, ranges) for arg in atom.args]
    for arg in args:
        if all(arg is other or (arg - other).bounds(ranges)[0] >= 0 for other in args):
            return arg
    return Max.of(*args)


def _simplified_parts(atom: FloorDiv | Mod, ranges: Ranges) -> tuple[Expr, ExprLike]:
    bottom = atom.denominator
    bottom = simplify(bottom, ranges) if isinstance(bottom, Expr) else bottom
    return simplify(atom.numerator, ranges), bottom if as_int(bottom) is None else as_int(bottom)  # type: ignore[return-value]


def _nearest_division(quotient: Expr, rest: Expr, bottom: int) -> tuple[Expr, Expr]:
    """The division with the coefficients of the rest nearest to zero: 255*x // 256 = x + -x // 256. Indices that shift
    each row by one against the row before need it."""
    moved = from_terms({monomial: 1 for monomial, value in rest._terms if monomial and 2 * value > bottom})
    return quotient + moved, rest - moved * bottom


def _steps(expr: Expr, bottom: int) -> list[int]:
    """Factors of `bottom` that divide some but not all terms of `expr`, the largest first."""
    found = {math.gcd(value, bottom) for monomial, value in expr._terms if monomial}
    return sorted((step for step in found if step > 1), reverse=True)


_RULES: dict[type[Atom], Callable[[Any, Ranges], Expr]] = {
    Symbol: _symbol,
    FloorDiv: _floor_division,
    Mod: _remainder,
    Min: _least,
    Max: _greatest,
}
