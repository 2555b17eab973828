"""Builds the space that two groups share after fusion: which of the paired loops are outer and which are inner.

Arithmetic on loops only; legality.py proves that values flow correctly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stator.inductor.sizes import SizeKnowledge
from stator.shapes.expr import Expr, ExprLike, Symbol

from .space import FreshSymbols, Loop, LoopOverlay, Space, contiguous_walk, overlay, split_loops

Replacements = dict[Symbol, ExprLike]


@dataclass(frozen=True, slots=True)
class FusedSpace:
    """`first`/`second`: the replacements for the loops' symbols of each group."""

    space: Space
    first: Replacements
    second: Replacements


@dataclass(frozen=True, slots=True)
class _Side:
    """A group's loops after splitting. `rest_outer` and `rest_inner` have no partner in the other group."""

    outer: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    rest_outer: tuple[Loop, ...]
    rest_inner: tuple[Loop, ...]


def fuse_spaces(
    first: Space, second: Space, laid: LoopOverlay, names: FreshSymbols, knowledge: SizeKnowledge
) -> FusedSpace | None:
    """None where the spaces do not fit: the second neither runs through a loop of the first nor reduces over it, or
    their rows have different shapes."""
    sizes = {loop.symbol: loop.size for pair in laid.pairs for loop in pair}
    sizes |= {loop.symbol: loop.size for loop in (*laid.rest_first, *laid.rest_second)}
    partner = {b.symbol: a for a, b in laid.pairs}
    one = _side(first, laid.first, sizes, {a.symbol for a, _ in laid.pairs}, knowledge)
    other = _side(second, laid.second, sizes, partner.keys(), knowledge)
    renamed: Replacements = {b: a.symbol for b, a in partner.items()}
    if one.rest_outer:
        return None
    if one.inner:
        return _onto_rows(one, other, laid, renamed, names, knowledge)
    if other.inner:
        space = _feeding_rows(one, other, renamed)
    else:
        space = Space(one.outer, other.rest_outer)
    return None if space is None else FusedSpace(space, laid.first, compose(laid.second, renamed))


def _side(
    space: Space,
    replacements: Replacements,
    sizes: dict[Symbol, ExprLike],
    paired: Iterable[Symbol],
    knowledge: SizeKnowledge,
) -> _Side:
    outer, inner = (split_loops(loops, replacements, sizes, knowledge) for loops in (space.outer, space.inner))
    paired = set(paired)
    rest_outer, rest_inner = (tuple([loop for loop in loops if loop.symbol not in paired]) for loops in (outer, inner))
    return _Side(outer, inner, rest_outer, rest_inner)


def _onto_rows(
    one: _Side, other: _Side, laid: LoopOverlay, renamed: Replacements, names: FreshSymbols, knowledge: SizeKnowledge
) -> FusedSpace | None:
    """The first group has rows. The second runs over rows and elements, reduces over the elements, or runs over
    rows."""
    rest = (*other.rest_outer, *other.rest_inner)
    if one.rest_inner and len(one.rest_inner) != len(one.inner):
        return None
    inner, other_inner = one.inner, other.inner
    replace_first, replace_second = laid.first, laid.second
    if rest:
        if not one.rest_inner:
            return None
        # the rows are paired already; pair their elements in order
        more = overlay(contiguous_walk(one.rest_inner), contiguous_walk(rest), names, knowledge)
        if more is None or more.rest_first or more.rest_second:
            return None
        sizes = {loop.symbol: loop.size for pair in more.pairs for loop in pair}
        inner = split_loops(inner, more.first, sizes, knowledge)
        other_inner = split_loops(other_inner, more.second, sizes, knowledge)
        replace_first = compose(replace_first, more.first)
        replace_second = compose(replace_second, more.second)
        renamed = {**renamed, **{b.symbol: a.symbol for a, b in more.pairs}}
    if other_inner and {renamed[loop.symbol] for loop in other_inner} != {loop.symbol for loop in inner}:
        return None
    return FusedSpace(Space(one.outer, inner), replace_first, compose(replace_second, renamed))


def _feeding_rows(one: _Side, other: _Side, renamed: Replacements) -> Space | None:
    """The first group is pointwise. It runs over all loops of the second, which has rows, or over its outer loops."""
    if other.rest_outer:
        return None
    if other.rest_inner:
        return Space(one.outer, other.inner) if len(other.rest_inner) == len(other.inner) else None
    elements = {renamed[loop.symbol] for loop in other.inner}
    outer, inner = (
        tuple([loop for loop in one.outer if (loop.symbol in elements) is wanted]) for wanted in (False, True)
    )
    return Space(outer, inner)


def compose(first: Replacements, then: Replacements) -> Replacements:
    """Apply one replacement after the other."""
    result = {symbol: expr.substitute(then) if isinstance(expr, Expr) else expr for symbol, expr in first.items()}
    for symbol, expr in then.items():
        result.setdefault(symbol, expr)
    return result
