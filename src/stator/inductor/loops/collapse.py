"""Merges adjacent loops where every index moves through them as through one loop. A pass over frozen bodies."""

from __future__ import annotations

from stator.shapes.expr import ZERO, Expr, FloorDiv, Mod, Symbol
from stator.shapes.simplify import loop_ranges, simplify

from .body import LoopBody


def collapse(body: LoopBody) -> LoopBody:
    """Drop loops of one iteration and merge contiguous neighbours, outer and reduced loops apart."""
    indices = body.indices
    variables, ranges, indices = _merge(body.vars, body.ranges, indices)
    reduced, reduced_ranges, indices = _merge(body.reduction_vars, body.reduction_ranges, indices)
    if indices is body.indices and variables == body.vars and reduced == body.reduction_vars:
        return body
    if body.reduction_vars and not reduced:
        # reduce() needs a loop to reduce over, even a loop of one iteration
        reduced, reduced_ranges = body.reduction_vars[-1:], body.reduction_ranges[-1:]
    limits = loop_ranges((*variables, *reduced), (*ranges, *reduced_ranges))
    for at, op in enumerate(body.ops):
        if op.name == "indirect":
            limits[Symbol(f"indirect{at}")] = (0, max(op.args[1] - 1, 0))  # type: ignore[operator]
    simplified = tuple(simplify(index, limits) for index in indices)
    return LoopBody(variables, ranges, reduced, reduced_ranges, simplified, body.ops)


def _merge(
    variables: tuple[Symbol, ...], ranges: tuple[int, ...], indices: tuple[Expr, ...]
) -> tuple[tuple[Symbol, ...], tuple[int, ...], tuple[Expr, ...]]:
    single = {symbol: ZERO for symbol, size in zip(variables, ranges, strict=True) if size == 1}
    if single:
        indices = tuple(index.substitute(single) for index in indices)
    kept: list[tuple[Symbol, int]] = []
    for inner, size in zip(reversed(variables), reversed(ranges), strict=True):
        if inner in single:
            continue
        if kept and 0 not in (size, kept[-1][1]):
            # `inner` is now the loop around kept[-1]
            last, extent = kept[-1]
            if all(_moves_as_one(index, inner, last, extent) for index in indices):
                indices = tuple(index.substitute({inner: ZERO}) for index in indices)
                kept[-1] = (last, size * extent)
                continue
        kept.append((inner, size))
    kept.reverse()
    return tuple(symbol for symbol, _ in kept), tuple(size for _, size in kept), indices


def _moves_as_one(index: Expr, outer: Symbol, inner: Symbol, extent: int) -> bool:
    """True if `index` is a function of extent*outer + inner."""
    return _excess(index, outer, inner, extent) == 0


def _excess(index: Expr, outer: Symbol, inner: Symbol, extent: int) -> int | None:
    """The e with index == f(extent*outer + inner) + e*outer, where f is index with outer = 0; None if there is none."""
    if outer not in index.symbols and inner not in index.symbols:
        return 0
    excess = 0
    for monomial, value in index.terms().items():
        if not any(outer in atom.symbols or inner in atom.symbols for atom in monomial):
            continue
        if len(monomial) != 1:
            return None
        atom = monomial[0]
        if atom is outer:
            excess += value
        elif atom is inner:
            excess -= extent * value
        elif isinstance(atom, FloorDiv | Mod) and isinstance(atom.denominator, int):
            inside = _excess(atom.numerator, outer, inner, extent)
            if inside is None or inside % atom.denominator:
                return None
            if isinstance(atom, FloorDiv):
                excess += value * (inside // atom.denominator)
        else:
            return None
    return excess
