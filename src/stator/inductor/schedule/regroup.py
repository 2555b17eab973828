"""Turns a candidate into a `Group`: sorts loops into memory order, rewrites members over them, merges neighbours."""

from __future__ import annotations

from stator.inductor.loops.body import Op
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge
from stator.shapes.expr import ExprLike, Symbol

from .groups import Group
from .legality import FusionCandidate
from .reindex import INNER, OUTER, collapse_group, substitute_loops
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
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for node in changed:
        for op in node.body.ops:
            _argument(op, internal, reads, writes)
    return Group(name, changed, ranges, internal, tuple(reads), tuple(writes), inner_ranges)


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
