"""Turns a candidate into a `Group`: sorts loops into memory order, rewrites members over them, and merges neighbouring
loops where every index of a group allows it. No fusion is decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stator.inductor.buffers import Loops
from stator.inductor.loops.body import LoopBody, Op
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge, Sizes
from stator.shapes.expr import ZERO, Expr, ExprLike, Symbol
from stator.shapes.simplify import simplify

from .groups import Group
from .legality import FusionCandidate
from .space import Loop, Space, strides


def make_group(
    name: str, candidate: FusionCandidate, internal: frozenset[str], knowledge: SizeKnowledge = NUMBERS_ONLY
) -> Group:
    space = _in_memory_order(candidate, knowledge)
    names: dict[Symbol, ExprLike] = {}
    for loops, symbols in ((space.outer, OUTER), (space.inner, INNER)):
        for loop, symbol in zip(loops, symbols, strict=False):
            names[loop.symbol] = symbol
    outer, inner = OUTER[: len(space.outer)], INNER[: len(space.inner)]
    outer_sizes = tuple([loop.size for loop in space.outer])
    inner_sizes = tuple([loop.size for loop in space.inner])
    members = []
    inner_symbols = {loop.symbol for loop in space.inner}
    for member, facts in zip(candidate.members, candidate.facts, strict=True):
        where = {s: e.substitute(names) if not isinstance(e, int) else e for s, e in member.where.items()}
        uses_inner = any(
            not isinstance(e, int) and not inner_symbols.isdisjoint(e.symbols) for e in member.where.values()
        )
        if facts.reduces:
            spaces = (outer, outer_sizes, inner, inner_sizes)
        elif uses_inner:
            spaces = (outer + inner, outer_sizes + inner_sizes, (), ())
        else:
            spaces = (outer, outer_sizes, (), ())
        members.append(substitute_loops(member.node, where, *spaces, knowledge))
    changed, ranges, inner_ranges = collapse_group(members, len(outer), knowledge)
    return group_of(name, changed, ranges, internal, inner_ranges)


def group_of(
    name: str, members: Sequence[Loops], ranges: Sizes, internal: frozenset[str], inner_ranges: Sizes
) -> Group:
    """The group of members whose loops are those of the group."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for node in members:
        for op in node.body.ops:
            _argument(op, internal, reads, writes)
    return Group(name, tuple(members), ranges, internal, tuple(reads), tuple(writes), inner_ranges)


def _in_memory_order(candidate: FusionCandidate, knowledge: SizeKnowledge) -> Space:
    """Sort the loops by the strides of the widest access."""
    space = candidate.space
    best = (strides(candidate.widest, space.loops, knowledge) if candidate.widest is not None else None) or []
    rank = {loop.symbol: knowledge.hint(step) for step, loop in best}
    keep_inner = any(facts.positions for facts in candidate.facts)  # argmax counts positions in the order of its loops

    def order(loops: tuple[Loop, ...]) -> tuple[Loop, ...]:
        return tuple(sorted(loops, key=lambda loop: -rank.get(loop.symbol, 1 << 62)))

    return Space(order(space.outer), space.inner if keep_inner else order(space.inner))


def _argument(op: Op, internal: frozenset[str], reads: dict[str, None], writes: dict[str, None]) -> None:
    if op.name == "load":
        buffer = op.args[0]
        if buffer not in internal and buffer not in writes:
            reads[buffer] = None  # type: ignore[index]
    elif op.name == "store" and op.args[0] not in internal:
        writes[op.args[0]] = None  # type: ignore[index]


OUTER = tuple(Symbol(f"x{at}") for at in range(64))
INNER = tuple(Symbol(f"r{at}") for at in range(64))


def substitute_loops(
    node: Loops,
    replacements: Mapping[Symbol, ExprLike],
    variables: tuple[Symbol, ...],
    ranges: Sizes,
    reduction_variables: tuple[Symbol, ...],
    reduction_ranges: Sizes,
    knowledge: SizeKnowledge = NUMBERS_ONLY,
) -> Loops:
    """Express the node's loop variables in others, which must cover the same iterations."""
    limits = knowledge.ranges((*variables, *reduction_variables), (*ranges, *reduction_ranges))
    indices = tuple([simplify(index.substitute(replacements), limits) for index in node.body.indices])
    body = LoopBody(variables, ranges, reduction_variables, reduction_ranges, indices, node.body.ops)
    return replace(node, body=body)


def collapse_group(
    members: Sequence[Loops], shared: int, knowledge: SizeKnowledge
) -> tuple[tuple[Loops, ...], Sizes, Sizes]:
    """Merge neighbouring loops of a group's members wherever every index allows it. The members' loops already have
    common symbols. Returns the members, the ranges of the shared loops, and the ranges of the inner loops."""
    widest = max((member.body for member in members), key=lambda body: len(body.vars) + len(body.reduction_vars))
    symbols = (*widest.vars, *widest.reduction_vars)
    sizes = (*widest.ranges, *widest.reduction_ranges)
    indices = {index for member in members for index in member.body.indices}
    outer, outer_sizes, replacements = _merge(symbols[:shared], sizes[:shared], indices, OUTER)
    inner, inner_sizes, more = _merge(symbols[shared:], sizes[shared:], indices, INNER)
    replacements |= more
    changed = []
    for member in members:
        reduces = bool(member.body.reduction_vars)
        has_inner = reduces or len(member.body.vars) > shared
        variables, ranges = outer, outer_sizes
        if has_inner and not reduces:
            variables, ranges = outer + inner, outer_sizes + inner_sizes
        reduction = (inner, inner_sizes) if reduces else ((), ())
        changed.append(substitute_loops(member, replacements, variables, ranges, *reduction, knowledge))
    return tuple(changed), outer_sizes, inner_sizes


def _merge(
    symbols: tuple[Symbol, ...], sizes: Sizes, indices: set[Expr], names: tuple[Symbol, ...]
) -> tuple[tuple[Symbol, ...], Sizes, dict[Symbol, ExprLike]]:
    """Merge runs of loops that every index walks through as through one loop."""
    replacements: dict[Symbol, ExprLike] = {}
    merged: list[ExprLike] = []
    for at, (symbol, size) in enumerate(zip(symbols, sizes, strict=True)):
        if at and _contiguous(symbols[at - 1], symbol, size, indices):
            replacements[symbols[at - 1]] = ZERO
            merged[-1] = merged[-1] * size
        else:
            merged.append(size)
        replacements[symbol] = names[len(merged) - 1]
    return names[: len(merged)], tuple(merged), replacements


def _contiguous(first: Symbol, second: Symbol, size: ExprLike, indices: set[Expr]) -> bool:
    for index in indices:
        step = index.coefficient(second)
        if step is None or index.coefficient(first) != step * size:
            return False
    return True
