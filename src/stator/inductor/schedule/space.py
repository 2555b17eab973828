"""Iteration spaces of candidate groups, and the pairing of the loops of two spaces. Arithmetic on loops only:
legality.py and profit.py decide about fusions.

A space has outer loops, shared by all members, and inner loops, which members reduce over or run through. A member's
own loop variables are expressions in the space's symbols.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stator.inductor.buffers import Loops
from stator.inductor.sizes import SizeKnowledge
from stator.shapes.expr import Expr, ExprLike, FloorDiv, Mod, Symbol, as_expr, constant
from stator.shapes.simplify import simplify


class FreshSymbols:
    """Fresh symbols for one schedule."""

    def __init__(self) -> None:
        self._count = 0

    def fresh(self) -> Symbol:
        self._count += 1
        return Symbol(f"g{self._count}")


@dataclass(frozen=True, slots=True)
class Loop:
    symbol: Symbol
    size: ExprLike


@dataclass(frozen=True, slots=True)
class Member:
    """A node with its loop variables in terms of the space's symbols. `known`: a cache of translated indices."""

    node: Loops
    where: dict[Symbol, ExprLike]
    known: dict[Expr, Expr] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Space:
    outer: tuple[Loop, ...]
    inner: tuple[Loop, ...]

    @property
    def loops(self) -> tuple[Loop, ...]:
        return self.outer + self.inner

    def ranges(self, sizes: SizeKnowledge) -> dict[Symbol, Any]:
        return sizes.ranges([loop.symbol for loop in self.loops], [loop.size for loop in self.loops])


def space_of(node: Loops, names: FreshSymbols, sizes: SizeKnowledge) -> tuple[Space, Member]:
    """The space of a single node: reduced loops are inner, all others are outer."""
    body = node.body
    where: dict[Symbol, ExprLike] = {}
    boundaries = _boundaries(body.indices)
    outer = _loops(body.vars, body.ranges, where, boundaries, names, sizes)
    inner = _loops(body.reduction_vars, body.reduction_ranges, where, boundaries, names, sizes)
    if body.reduction_vars and not inner:
        symbol = names.fresh()  # a reduction over one element stays a reduction
        where[body.reduction_vars[-1]] = symbol
        inner = (Loop(symbol, body.reduction_ranges[-1]),)
    return Space(outer, inner), Member(node, where)


def _loops(
    symbols: tuple[Symbol, ...],
    ranges: tuple[ExprLike, ...],
    where: dict[Symbol, ExprLike],
    boundaries: dict[Symbol, set[ExprLike]],
    names: FreshSymbols,
    sizes: SizeKnowledge,
) -> tuple[Loop, ...]:
    found: list[Loop] = []
    for symbol, size in zip(symbols, ranges, strict=True):
        if size == 1:
            where[symbol] = constant(0)
            continue
        total: ExprLike = 0
        parts = []
        step: ExprLike = 1
        for boundary in (*_nested_divisors(boundaries.get(symbol, set()), size, sizes), size):
            loop = Loop(names.fresh(), boundary // step)
            parts.append(loop)
            total = loop.symbol * step + total
            step = boundary
        where[symbol] = total
        found += reversed(parts)
    return tuple(found)


def _boundaries(indices: tuple[Expr, ...]) -> dict[Symbol, set[ExprLike]]:
    """For each loop the divisors in divisions and remainders of it. Splitting the loop there leaves plain walks."""
    found: dict[Symbol, set[ExprLike]] = {}
    pending = [atom for index in indices for atom in index.atoms if not isinstance(atom, Symbol)]
    while pending:
        atom = pending.pop()
        if isinstance(atom, FloorDiv | Mod):
            place = _loop_over_divisor(atom.numerator)
            if place is not None and place[0] not in as_expr(atom.denominator).symbols:
                found.setdefault(place[0], set()).add(place[1] * atom.denominator)
            pending += [inner for inner in atom.numerator.atoms if not isinstance(inner, Symbol)]
    return found


def _loop_over_divisor(numerator: Expr) -> tuple[Symbol, ExprLike] | None:
    """(loop, k) when the numerator is loop // k."""
    if isinstance(numerator, Symbol):
        return numerator, 1
    if isinstance(numerator, FloorDiv):
        inner = _loop_over_divisor(numerator.numerator)
        return (inner[0], inner[1] * numerator.denominator) if inner else None
    return None


def _nested_divisors(boundaries: set[ExprLike], size: ExprLike, sizes: SizeKnowledge) -> list[ExprLike]:
    """The boundaries that divide each other and the size, ascending."""
    found: list[ExprLike] = []
    for boundary in sorted(boundaries, key=sizes.hint):
        within = boundary != size and 1 < sizes.hint(boundary) < sizes.hint(size)
        if within and sizes.divides(boundary, size) and sizes.divides(found[-1] if found else 1, boundary):
            found.append(boundary)
    return found


def space_index(index: Expr, member: Member, ranges: dict[Symbol, Any]) -> Expr:
    """A member's index in terms of the space's symbols."""
    found = member.known.get(index)
    if found is None:
        found = member.known[index] = simplify(index.substitute(member.where), ranges)
    return found


def strides(index: Expr, loops: tuple[Loop, ...], sizes: SizeKnowledge) -> list[tuple[ExprLike, Loop]] | None:
    """(stride, loop) of the loops that an index walks along, smallest stride first; None if the walk is not linear."""
    found = []
    for loop in loops:
        step = index.coefficient(loop.symbol)
        if step is None or not sizes.known(">=", step, 0):
            return None
        if step != 0:
            found.append((step, loop))
    found.sort(key=lambda pair: sizes.hint(pair[0]))
    return found


@dataclass(slots=True)
class LoopOverlay:
    """Two spaces laid over each other. `pairs`: the (first's, second's) loops that correspond, perhaps pieces of loops.
    `rest_first`/`rest_second`: loops without a partner. `first`/`second`: replacements for loops that had to be split.
    """

    pairs: list[tuple[Loop, Loop]]
    rest_first: list[Loop]
    rest_second: list[Loop]
    first: dict[Symbol, ExprLike]
    second: dict[Symbol, ExprLike]


def overlay(
    first: list[tuple[ExprLike, Loop]],
    second: list[tuple[ExprLike, Loop]],
    names: FreshSymbols,
    sizes: SizeKnowledge,
) -> LoopOverlay | None:
    """Pair the loops of two walks through the same memory. A loop is split where the other walk has a boundary."""
    a, b = list(reversed(first)), list(reversed(second))  # smallest stride last, as stacks
    result = LoopOverlay([], [], [], {}, {})
    pieces_first: dict[Symbol, list[Loop]] = {}
    pieces_second: dict[Symbol, list[Loop]] = {}
    owner: dict[Symbol, Symbol] = {}
    while a and b:
        (step_a, loop_a), (step_b, loop_b) = a.pop(), b.pop()
        if step_a != step_b:
            return None
        if loop_a.size == loop_b.size:
            result.pairs.append((loop_a, loop_b))
        elif 0 in (loop_a.size, loop_b.size):
            return None
        elif sizes.divides(loop_a.size, loop_b.size):
            low, high = _split(loop_b, loop_a.size, owner, pieces_second, names)
            b.append((step_b * low.size, high))
            result.pairs.append((loop_a, low))
        elif sizes.divides(loop_b.size, loop_a.size):
            low, high = _split(loop_a, loop_b.size, owner, pieces_first, names)
            a.append((step_a * low.size, high))
            result.pairs.append((low, loop_b))
        else:
            return None
    result.rest_first = [loop for _, loop in a]
    result.rest_second = [loop for _, loop in b]
    result.first = _replacements(pieces_first)
    result.second = _replacements(pieces_second)
    return result


def _split(
    loop: Loop, size: ExprLike, owner: dict[Symbol, Symbol], pieces: dict[Symbol, list[Loop]], names: FreshSymbols
) -> tuple[Loop, Loop]:
    """Split a loop into its fast `size` iterations and the slow rest."""
    whole = owner.get(loop.symbol, loop.symbol)
    low, high = Loop(names.fresh(), size), Loop(names.fresh(), loop.size // size)
    owner[low.symbol] = owner[high.symbol] = whole
    parts = pieces.setdefault(whole, [loop])
    parts.remove(loop)
    parts += [low, high]
    return low, high


def _replacements(pieces: dict[Symbol, list[Loop]]) -> dict[Symbol, ExprLike]:
    """The expression for each split loop. Pieces are listed from the fastest to the slowest."""
    found: dict[Symbol, ExprLike] = {}
    for symbol, parts in pieces.items():
        total: ExprLike = 0
        step: ExprLike = 1
        for part in parts:
            total = part.symbol * step + total
            step = step * part.size
        found[symbol] = total
    return found


def contiguous_walk(loops: list[Loop] | tuple[Loop, ...]) -> list[tuple[ExprLike, Loop]]:
    """The walk through consecutive elements along these loops, outermost first."""
    found: list[tuple[ExprLike, Loop]] = []
    step: ExprLike = 1
    for loop in reversed(loops):
        found.append((step, loop))
        step = step * loop.size
    return found


def split_loops(
    loops: tuple[Loop, ...],
    replacements: dict[Symbol, ExprLike],
    sizes: dict[Symbol, ExprLike],
    knowledge: SizeKnowledge,
) -> tuple[Loop, ...]:
    """Replace each split loop by its pieces, slowest first."""
    found: list[Loop] = []
    for loop in loops:
        expr = replacements.get(loop.symbol)
        if expr is None:
            found.append(loop)
            continue
        assert isinstance(expr, Expr)
        pieces = [symbol for symbol in expr.symbols if symbol in sizes]
        parts = sorted(
            ((expr.coefficient(symbol), symbol) for symbol in pieces),
            key=lambda part: -knowledge.hint(0 if part[0] is None else part[0]),
        )
        found += [Loop(symbol, sizes[symbol]) for _, symbol in parts]
    return tuple(found)
