"""Proves that two groups may become one: lays the later group's loops over the earlier group's, and checks that the
iteration that makes a value is the one that uses it. profit.py decides whether the fusion is worth it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge, product
from stator.shapes.expr import ZERO, Expr, ExprLike, Symbol

from .accesses import LoopSummary
from .fused_space import fuse_spaces
from .space import FreshSymbols, Loop, Member, Space, contiguous_walk, overlay, space_index, strides

Walk = list[tuple[ExprLike, Loop]]  # loops with their strides


@dataclass(slots=True)
class FusionCandidate:
    """A group under construction. `mutates`: inputs that it writes in place; `touches`: inputs that it reads."""

    space: Space
    members: list[Member]
    facts: list[LoopSummary]
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    mutates: set[str] = field(default_factory=set)
    touches: set[str] = field(default_factory=set)
    widest: Expr | None = None  # the access that walks along the most loops
    lanes: frozenset[Symbol] = frozenset()  # loops along which a store over all loops is contiguous

    def accesses(self, kind: str, buffer: str, knowledge: SizeKnowledge) -> Iterator[Expr]:
        """The indices of all plain accesses to a buffer, in the space's symbols."""
        ranges = self.space.ranges(knowledge)
        for member, facts in zip(self.members, self.facts, strict=True):
            if buffer in (facts.reads if kind == "loads" else facts.writes):
                for access in getattr(facts, kind):
                    if access.buffer == buffer:
                        yield space_index(access.index, member, ranges)


@dataclass(frozen=True, slots=True)
class Fusion:
    """A legal fusion: the joint space, and both groups' members in its symbols."""

    space: Space
    members: list[Member]
    facts: list[LoopSummary]
    flow: frozenset[str]  # buffers that the first writes and the second reads
    paired: ExprLike  # iterations of the loops that were paired through memory
    widest: Expr | None
    lanes_first: frozenset[Symbol]
    lanes_second: frozenset[Symbol]


def fuse(
    first: FusionCandidate,
    second: FusionCandidate,
    sizes: dict[str, int],
    names: FreshSymbols,
    knowledge: SizeKnowledge = NUMBERS_ONLY,
) -> Fusion | None:
    """Lay `second` over `first`, which runs before it; None when the fusion is illegal. `sizes`: elements of each
    buffer, in the example."""
    flow = first.writes & second.reads
    if not _memory_allows(first, second):
        return None
    through = _common_walk(first, second, flow, sizes, knowledge)
    if through is None:
        return None
    laid = overlay(*through, names, knowledge)
    if laid is None:
        return None
    joint = fuse_spaces(first.space, second.space, laid, names, knowledge)
    if joint is None:
        return None
    space, replace_first, replace_second = joint.space, joint.first, joint.second
    if space.inner and (first.mutates or second.mutates):
        return None  # a later phase would read memory again that an earlier phase has overwritten
    members_first = _moved(first.members, replace_first)
    members_second = _moved(second.members, replace_second)
    if not _flows_in_place(first, second, members_first, members_second, space, flow, knowledge):
        return None
    members = members_first + members_second
    facts = first.facts + second.facts
    if not _keeps_position_order(members, facts, space):
        return None
    paired = product(loop.size for loop, _ in laid.pairs)
    return Fusion(
        space,
        members,
        facts,
        frozenset(flow),
        paired,
        _wider(_replaced(first.widest, replace_first), _replaced(second.widest, replace_second), space),
        _replaced_lanes(first.lanes, replace_first),
        _replaced_lanes(second.lanes, replace_second),
    )


def _memory_allows(first: FusionCandidate, second: FusionCandidate) -> bool:
    """True if no buffer is written by both, and no buffer that the first reads is written by the second."""
    return (
        not (first.writes & second.writes)
        and not (first.reads & second.writes)
        and not (first.touches & second.mutates)
        and not (first.mutates & second.mutates)
        and not (first.mutates & second.reads)
    )


def _common_walk(
    first: FusionCandidate,
    second: FusionCandidate,
    flow: set[str],
    sizes: dict[str, int],
    knowledge: SizeKnowledge,
) -> tuple[Walk, Walk] | None:
    """The walks of both groups through a buffer that both access. The walks show which loops correspond."""
    best: tuple[int, Walk, Walk] | None = None
    shared = flow or (first.reads & second.reads)
    for buffer in sorted(shared, key=lambda name: (-sizes[name], name)):
        walk_first = _walk(first, "stores" if buffer in flow else "loads", buffer, knowledge)
        walk_second = _walk(second, "loads", buffer, knowledge)
        if walk_first is None or walk_second is None:
            if buffer in flow:
                return None
            continue
        covered = sum(knowledge.hint(loop.size) for _, loop in (*walk_first, *walk_second))
        if best is None or covered > best[0]:
            best = (covered, walk_first, walk_second)
    if best is None:
        if flow:
            return None
        return contiguous_walk(first.space.loops), contiguous_walk(second.space.loops)
    return best[1], best[2]


def _walk(candidate: FusionCandidate, kind: str, buffer: str, knowledge: SizeKnowledge) -> Walk | None:
    widest: Walk | None = None
    for index in candidate.accesses(kind, buffer, knowledge):
        found = strides(index, candidate.space.loops, knowledge)
        if found is not None and (widest is None or len(found) > len(widest)):
            widest = found
    return widest


def single_node_candidate(
    space: Space, member: Member, facts: LoopSummary, knowledge: SizeKnowledge
) -> FusionCandidate:
    """A group of one node."""
    ranges = space.ranges(knowledge)
    widest: Expr | None = None
    lanes: set[Symbol] = set()
    for access in facts.stores:
        index = space_index(access.index, member, ranges)
        walk = strides(index, space.loops, knowledge)
        if walk is not None:
            widest = _wider(widest, index, space)
            if walk and walk[0][0] == 1 and len(walk) == len(space.loops):
                lanes.add(walk[0][1].symbol)
    if widest is None or _loops_along(widest, space) < len(space.loops):
        for access in facts.loads:
            index = space_index(access.index, member, ranges)
            if strides(index, space.loops, knowledge) is not None:
                widest = _wider(widest, index, space)
    return FusionCandidate(
        space, [member], [facts], set(facts.reads), set(facts.writes), widest=widest, lanes=frozenset(lanes)
    )


def _wider(one: Expr | None, other: Expr | None, space: Space) -> Expr | None:
    if one is None or other is None:
        return other if one is None else one
    return other if _loops_along(other, space) > _loops_along(one, space) else one


def _loops_along(index: Expr, space: Space) -> int:
    """The number of loops that an access walks along by itself, not by an index that data gives."""
    return sum(loop.symbol in index.symbols for loop in space.loops)


def _replaced(index: Expr | None, replacements: dict[Symbol, ExprLike]) -> Expr | None:
    return index.substitute(replacements) if index is not None and replacements else index


def _replaced_lanes(lanes: frozenset[Symbol], replacements: dict[Symbol, ExprLike]) -> frozenset[Symbol]:
    """Replace each loop by its fastest piece."""
    found = set()
    for symbol in lanes:
        expr = replacements.get(symbol, symbol)
        if isinstance(expr, Expr):
            found |= {piece for piece in expr.symbols if expr.coefficient(piece) == 1}
    return frozenset(found)


def _moved(members: list[Member], replacements: dict[Symbol, ExprLike]) -> list[Member]:
    if not replacements:
        return members
    moved = []
    for member in members:
        where: dict[Symbol, ExprLike] = {}
        for symbol, expr in member.where.items():
            if isinstance(expr, Symbol):
                where[symbol] = replacements.get(expr, expr)
            else:
                where[symbol] = expr.substitute(replacements) if isinstance(expr, Expr) else expr
        moved.append(Member(member.node, where))
    return moved


def _flows_in_place(
    first: FusionCandidate,
    second: FusionCandidate,
    members_first: list[Member],
    members_second: list[Member],
    space: Space,
    flow: set[str],
    knowledge: SizeKnowledge,
) -> bool:
    """True if every element that flows is read by the iteration that wrote it."""
    if not flow:
        return True
    ranges = space.ranges(knowledge)
    written: dict[str, Expr] = {}
    for member, facts in zip(members_first, first.facts, strict=True):
        if facts.writes & flow:
            for access in facts.stores:
                if access.buffer in flow:
                    if access.buffer in written or not access.plain:
                        return False
                    written[access.buffer] = space_index(access.index, member, ranges)
    inner = {loop.symbol for loop in space.inner}
    for member, facts in zip(members_second, second.facts, strict=True):
        if not facts.reads & flow:
            continue
        for access in facts.loads:
            if access.buffer in flow and space_index(access.index, member, ranges) is not written[access.buffer]:
                return False
    return all(_injective(written[name], space, inner) for name in flow)


def _injective(index: Expr, space: Space, inner: set[Symbol]) -> bool:
    """True if each iteration that makes a value stores it to an element of its own; a row's value ignores inner
    loops."""
    missing = [loop for loop in space.outer if loop.size not in (0, 1) and loop.symbol not in index.symbols]
    return not missing


def _keeps_position_order(members: list[Member], all_facts: list[LoopSummary], space: Space) -> bool:
    """argmax, argmin and scans follow the order of their own loops, so the inner loops must have that order."""
    if not any(facts.positions for facts in all_facts):
        return True
    expected = _flat([(loop.symbol, loop.size) for loop in space.inner])
    for member, facts in zip(members, all_facts, strict=True):
        if facts.positions:
            body = member.node.body
            own = _flat(
                [(member.where[s], size) for s, size in zip(body.reduction_vars, body.reduction_ranges, strict=True)]
            )
            if own is not expected:
                return False
    return True


def _flat(loops: list[tuple[ExprLike, ExprLike]]) -> Expr:
    total: Expr = ZERO
    for where, size in loops:
        total = total * size + where
    return total
