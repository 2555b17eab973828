"""Merges adjacent loops where every index moves through them as through one loop. A pass over frozen bodies."""

from __future__ import annotations

from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge
from stator.shapes.expr import ZERO, Expr, ExprLike, FloorDiv, Mod, Symbol, from_sorted, modulo
from stator.shapes.simplify import add_index, simplify

from .body import LoopBody


def collapse(body: LoopBody, sizes: SizeKnowledge = NUMBERS_ONLY) -> LoopBody:
    """Drop loops of one iteration and merge contiguous neighbours, outer and reduced loops apart."""
    indices = body.indices
    variables, ranges, indices = _merge(body.vars, body.ranges, indices)
    reduced, reduced_ranges, indices = _merge(body.reduction_vars, body.reduction_ranges, indices)
    if indices is body.indices and variables == body.vars and reduced == body.reduction_vars:
        return body
    if body.reduction_vars and not reduced:
        # reduce() needs a loop to reduce over, even a loop of one iteration
        reduced, reduced_ranges = body.reduction_vars[-1:], body.reduction_ranges[-1:]
    limits = sizes.ranges((*variables, *reduced), (*ranges, *reduced_ranges))
    for at, op in enumerate(body.ops):
        if op.name == "indirect":
            add_index(limits, Symbol(f"indirect{at}"), op.args[1])  # type: ignore[arg-type]
    simplified = tuple(simplify(index, limits) for index in indices)
    return LoopBody(variables, ranges, reduced, reduced_ranges, simplified, body.ops)


def _merge(
    variables: tuple[Symbol, ...], ranges: tuple[ExprLike, ...], indices: tuple[Expr, ...]
) -> tuple[tuple[Symbol, ...], tuple[ExprLike, ...], tuple[Expr, ...]]:
    single = {symbol: ZERO for symbol, size in zip(variables, ranges, strict=True) if size == 1}
    if single:
        indices = tuple(index.substitute(single) for index in indices)
    kept: list[tuple[Symbol, ExprLike]] = []
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


def _moves_as_one(index: Expr, outer: Symbol, inner: Symbol, extent: ExprLike) -> bool:
    """True if `index` is a function of extent*outer + inner."""
    return _excess(index, outer, inner, extent) == 0


def _excess(index: Expr, outer: Symbol, inner: Symbol, extent: ExprLike) -> ExprLike | None:
    """The e with index == f(extent*outer + inner) + e*outer, where f is index with outer = 0; None if there is none."""
    if outer not in index.symbols and inner not in index.symbols:
        return 0
    excess: ExprLike = 0
    for monomial, value in index.terms().items():
        if not any(outer in atom.symbols or inner in atom.symbols for atom in monomial):
            continue
        factor: ExprLike = value
        if len(monomial) != 1:
            moving = [atom for atom in monomial if outer in atom.symbols or inner in atom.symbols]
            if len(moving) != 1:
                return None
            factor = from_sorted(((tuple([atom for atom in monomial if atom is not moving[0]]), value),))
            monomial = tuple(moving)
        atom = monomial[0]
        if atom is outer:
            excess = excess + factor
        elif atom is inner:
            excess = excess - extent * factor
        elif isinstance(atom, FloorDiv | Mod):
            if isinstance(atom.denominator, Expr) and not atom.denominator.symbols.isdisjoint((outer, inner)):
                return None
            inside = _excess(atom.numerator, outer, inner, extent)
            if inside is None or modulo(inside, atom.denominator) != 0:
                return None
            if isinstance(atom, FloorDiv):
                excess = excess + factor * (inside // atom.denominator)
        else:
            return None
    return excess
