"""Simplification under ranges: divisions, remainders and extrema that the bounds of the symbols decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from .expr import (
    ZERO,
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
    divided,
    divided_terms,
    floor_div,
    from_terms,
    modulo,
)
from .extrema import Max, Min
from .intervals import UNBOUNDED, Bound, floor_by
from .polynomial import accumulate, sort_key

Simplified = dict[Expr | tuple[Atom], Expr]


def simplify(expr: ExprLike, ranges: Ranges) -> Expr:
    """An equal expression for every value of the symbols within `ranges`, with fewer divisions where possible."""
    expr = as_expr(expr)
    if not expr.symbols:
        return expr
    if isinstance(ranges, SymbolicRanges):
        results = ranges.results_for(expr)
        found = results.get(expr)
        if found is None:
            found = results[expr] = _simplified(expr, ranges)
        return found
    signature = tuple([ranges.get(symbol, UNBOUNDED) for symbol in _ordered_symbols(expr)])
    cached = expr._simplified
    if cached is not None and cached[0] == signature:
        return cached[1]
    result = _simplified(expr, ranges)
    expr._simplified = (signature, result)
    return result


def _simplified(expr: Expr, ranges: Ranges) -> Expr:
    total: dict[Monomial, int] = {}
    for monomial, value in expr._terms:
        if len(monomial) == 1:
            accumulate(total, _under(monomial[0], ranges)._terms, value)
        else:
            product: Expr = constant(value)
            for atom in monomial:
                product = product * _under(atom, ranges)
            accumulate(total, product._terms, 1)
    return _recombined(from_terms(total))


def _under(atom: Atom, ranges: Ranges) -> Expr:
    """Simplify an atom under ranges. An atom without a rule stays as it is."""
    rule = _RULES.get(type(atom))
    if rule is None:
        return atom
    if rule is _symbol or not isinstance(ranges, SymbolicRanges):
        return rule(atom, ranges)
    results = ranges.results_for(atom)
    found = results.get((atom,))
    if found is None:
        found = results[(atom,)] = rule(atom, ranges)
    return found


def loop_ranges(variables: Iterable[Symbol], sizes: Iterable[int]) -> dict[Symbol, tuple[Bound, Bound]]:
    """Ranges of loop variables from 0 to size - 1 (an empty loop counts as one iteration)."""
    return {symbol: (0, max(size - 1, 0)) for symbol, size in zip(variables, sizes, strict=True)}


class SymbolicRanges(dict[Symbol, tuple[Bound, Bound]]):
    """Ranges of loop variables and of the symbolic sizes of loops.

    `extents`: a loop variable lies between 0 and its extent, exclusively. `proves` says whether facts about sizes imply
    that an expression over sizes is not negative. `of_sizes`: simplified expressions over sizes alone, for all ranges
    with these facts; and what rules make of single atoms, by tuples of them.
    """

    __slots__ = ("_added", "_copied", "_of_added", "_of_sizes", "_simplified", "extents", "loops", "proves")

    def __init__(self, sizes: Ranges, proves: Callable[[Expr], bool], of_sizes: Simplified | None = None) -> None:
        super().__init__(sizes)
        self.extents: dict[Symbol, Expr] = {}
        self.loops: set[Symbol] = set()
        self.proves = proves
        self._of_sizes: Simplified = {} if of_sizes is None else of_sizes
        self._simplified: Simplified = {}
        self._copied = False
        self._added: set[Symbol] = set()  # loops that a copy has beyond its original
        self._of_added: Simplified = {}

    def add_loop(self, symbol: Symbol, extent: ExprLike) -> None:
        """A further loop variable. An empty loop counts as one iteration."""
        self.loops.add(symbol)
        if self._copied:
            self._added.add(symbol)
        if isinstance(extent, Expr):
            self.extents[symbol] = extent
            self[symbol] = 0, max(extent.bounds(self)[1] - 1, 0)
        else:
            self[symbol] = 0, max(extent - 1, 0)

    def is_size(self, expr: Expr) -> bool:
        """True if the expression depends on sizes alone."""
        return self.loops.isdisjoint(expr.symbols) and expr.symbols <= self.keys()

    def results_for(self, expr: Expr) -> Simplified:
        """The simplified expressions among which that of `expr` is to be kept. Copies share all but those over loops
        that only they have."""
        if not self._added.isdisjoint(expr.symbols):
            return self._of_added
        return self._of_sizes if self.loops.isdisjoint(expr.symbols) else self._simplified

    def copy(self) -> SymbolicRanges:
        made = SymbolicRanges(self, self.proves, self._of_sizes)
        made.extents.update(self.extents)
        made.loops.update(self.loops)
        made._simplified, made._copied = self._simplified, True
        made._added.update(self._added)
        made._of_added.update(self._of_added)
        return made


def add_loop(ranges: dict[Symbol, tuple[Bound, Bound]], symbol: Symbol, extent: ExprLike) -> None:
    """Add a variable between 0 and its extent, exclusively. An empty loop counts as one iteration."""
    if isinstance(ranges, SymbolicRanges):
        ranges.add_loop(symbol, extent)
    else:
        ranges[symbol] = 0, max(as_expr(extent).offset - 1, 0)


def add_index(ranges: dict[Symbol, tuple[Bound, Bound]], symbol: Symbol, size: ExprLike) -> None:
    """Add an index that is read from memory, and checked against a size. The range of one into a single element has a
    second position: expressions would not contain the symbol of a known index, and the check would go with it."""
    add_loop(ranges, symbol, max(size, 2) if isinstance(size, int) else size)


def lies_below(expr: Expr, bottom: ExprLike, ranges: Ranges) -> bool:
    """True if 0 <= expr < bottom for all values within the ranges."""
    return expr.bounds(ranges)[0] >= 0 and stays_below(expr, bottom, ranges)


def stays_below(expr: Expr, bottom: ExprLike, ranges: Ranges) -> bool:
    """True if expr < bottom for all values within the ranges."""
    if not isinstance(bottom, Expr):
        return _bounds(expr, ranges)[1] < bottom
    if not isinstance(ranges, SymbolicRanges):
        return bool((bottom - expr).bounds(ranges)[0] >= 1)
    most = _largest(expr, ranges)
    return most is not None and ranges.proves(bottom - most - 1)


def _largest(expr: Expr, ranges: SymbolicRanges) -> Expr | None:
    """An upper bound in terms of sizes alone; None if none is found."""
    total: Expr = ZERO
    for monomial, value in expr._terms:
        product: Expr = constant(value)
        for atom in monomial:
            limit = _limit(atom, ranges, upper=value > 0)
            if limit is None or (len(monomial) > 1 and atom.bounds(ranges)[0] < 0):
                return None
            product = product * limit
        total = total + product
    return total


def _limit(atom: Atom, ranges: SymbolicRanges, upper: bool) -> ExprLike | None:
    """A bound of an atom in terms of sizes: an upper or a lower one."""
    if ranges.is_size(atom):
        return atom
    if isinstance(atom, Symbol) and upper and atom in ranges.extents:
        return ranges.extents[atom] - 1
    low, high = atom.bounds(ranges)
    if upper and high == math.inf and isinstance(atom, FloorDiv):
        top, bottom = _largest(atom.numerator, ranges), atom.denominator
        if top is not None and as_expr(bottom).bounds(ranges)[0] >= 1:
            return simplify(floor_div(top, bottom), ranges)
    if upper and high == math.inf and isinstance(atom, Mod) and as_expr(atom.denominator).bounds(ranges)[0] >= 1:
        return atom.denominator - 1
    found = high if upper else low
    return int(found) if math.isfinite(found) else None


def _bounds(expr: Expr, ranges: Ranges) -> tuple[Bound, Bound]:
    """Inclusive bounds, also from symbolic extents of loops."""
    low, high = expr.bounds(ranges)
    if high == math.inf and isinstance(ranges, SymbolicRanges):
        most = _largest(expr, ranges)
        if most is not None and most is not expr:
            high = most.bounds(ranges)[1]
    return low, high


def _split_symbolic(top: Expr, bottom: Expr, ranges: Ranges) -> tuple[Expr, Expr, Expr, Expr] | None:
    """(coarse, coarse bottom, fine, step) with top == coarse*step + fine, bottom == coarse bottom * step, and fine
    within [0, step): the fine part does not matter to the quotient."""
    content = math.gcd(*(value for _, value in bottom._terms))
    common = set.intersection(*(set(monomial) for monomial, _ in bottom._terms))
    for step in (constant(content), *sorted(common, key=sort_key)):
        if step.constant == 1 or step is bottom:
            continue
        coarse, fine = divided(top, step)
        if coarse is not ZERO and lies_below(fine, step, ranges):
            return coarse, divided(bottom, step)[0], fine, step
    return None


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
    if isinstance(bottom, Expr):
        quotient, rest = divided(top, bottom)
        if rest is ZERO or lies_below(rest, bottom, ranges):
            return quotient
        split = _split_symbolic(rest, bottom, ranges)
        if split is not None:
            return quotient + simplify(floor_div(split[0], split[1]), ranges)
    if not isinstance(bottom, int) or bottom <= 0:
        result = floor_div(top, bottom)
        low, high = result.bounds(ranges)
        return constant(int(low)) if low == high else result
    quotient, rest = divided_terms(top, bottom)
    for whole, left in ((quotient, rest), _nearest_division(quotient, rest, bottom)):
        low, high = (floor_by(bound, bottom) for bound in _bounds(left, ranges))
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
    if isinstance(bottom, Expr):
        rest = divided(top, bottom)[1]
        if rest is ZERO or lies_below(rest, bottom, ranges):
            return rest
        split = _split_symbolic(rest, bottom, ranges)
        if split is not None:
            return simplify(modulo(split[0], split[1]), ranges) * split[3] + split[2]
    if not isinstance(bottom, int) or bottom <= 0:
        result = modulo(top, bottom)
        if isinstance(result, Mod) and isinstance(bottom, Expr):
            whole = FloorDiv._of(result.numerator, bottom)._atom_bounds(ranges)
            if whole[0] == whole[1]:
                return result.numerator - bottom * int(whole[0])
        return result
    quotient, rest = divided_terms(top, bottom)
    for _, left in ((quotient, rest), _nearest_division(quotient, rest, bottom)):
        low, high = (floor_by(bound, bottom) for bound in _bounds(left, ranges))
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
