"""Finds attention: two matrix products with a softmax between them, as one launch that keeps no scores in memory.

Loops between the first product and the softmax become part of the launch, whatever they compute: scales, masks, biases
that vary. So do loops that copy sides or compute queries, and those that read the result. The backend says which
attention is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stator.inductor.buffers import Extern, Loops, Lowered
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.shapes.expr import Expr
from stator.shapes.simplify import simplify

from .accesses import memory_owner
from .attention_candidates import LOOPS_OF, AttentionCandidate, AttentionSteps, renamed
from .attention_divided_keys import divide_keys
from .attention_gradients import gradients_of
from .attention_shared_keys import with_shared_keys
from .groups import (
    KEYS,
    PRODUCTS,
    QUERIES,
    SCORES,
    VALUES,
    WEIGHTED,
    Attention,
    AttentionGroup,
    AttentionTile,
    Group,
    Schedule,
)
from .product_calls import DTYPES, LOOPS, loops_at, over_elements
from .regroup import collapse_group

Choose = Callable[[AttentionGroup], AttentionTile | None]

_REDUCTIONS = frozenset(("reduce", "welford", "get", "total"))
_COPIES = frozenset(("load", "to_dtype", "store"))
_LEAST_WIDTH, _MOST_WIDTH = 8, 256
_FEW_ROWS = 16  # which leave room in a tile for rows of other heads


def fuse_attention(schedule: Schedule, lowered: Lowered, choose: Choose) -> tuple[Schedule, Lowered]:
    """Replace attention by launches where `choose` gives them a tile. Results are those of the calls and loops up to
    rounding: scores, weights and sums stay in float32, and weights are rounded before they are divided by their sum."""
    if any(isinstance(step, Extern) and step.binds for step in schedule.steps):
        return schedule, lowered  # the order of checks of sizes is not looked at here
    fusion = _AttentionFusion(schedule, lowered)
    steps = fusion.run(choose)
    return Schedule(tuple(steps)), replace(lowered, buffers=fusion.buffers)


@dataclass(frozen=True, slots=True)
class _Side:
    """Loops that store a side's element, and the group that they are a part of, if they replace that part."""

    loops: Loops
    dtype: torch.dtype
    source: Group | None = None
    member: Loops | None = None


class _AttentionFusion(AttentionSteps):
    def run(self, choose: Choose) -> list[Group | Extern]:
        for step in list(self.steps):
            found = self.attention(step)
            if found is not None and all(_fits(size) for size in (found.depth, found.width)):
                self._fuse(found, choose)
            elif isinstance(step, Extern) and (gradients := gradients_of(self, step)) is not None:
                self._fuse_gradients(gradients, choose)
        return self.steps

    def _fuse_gradients(self, attention: Attention, choose: Choose) -> None:
        group = _named(f"gradients_{attention.epilogue[0].outputs[0]}", attention, frozenset())
        fits = all(_fits(size) for size in (attention.depth, attention.width))
        tile = choose(group) if fits and not self._overwrites(group) else None
        if tile is not None:
            self._replace(attention.steps, [replace(group, attention=replace(attention, tile=tile))], ())

    def _fuse(self, found: AttentionCandidate, choose: Choose) -> None:
        sides = self._sides(found)
        moved, follower = self._follower(found)
        steps = found.steps if follower is None else (*found.steps, follower)
        epilogue = [renamed(loops, WEIGHTED, self.lowered) for loops in (found.result, *moved)]
        attention = Attention(
            queries=sides[0].loops,
            keys=sides[1].loops,
            values=sides[2].loops,
            scores=tuple([renamed(loops, SCORES, self.lowered) for loops in found.scores]),
            epilogue=tuple(epilogue),
            batch=found.batch,
            rows=found.rows,
            count=found.count,
            depth=found.depth,
            width=found.width,
            dtypes=(sides[0].dtype, sides[2].dtype),
            hidden_rows_are_zero=found.hidden_rows_are_zero,
            causal=found.causal,
            steps=steps,
        )
        if isinstance(found.rows, int) and found.rows < _FEW_ROWS:
            attention = with_shared_keys(attention, self.lowered.sizes)
        (result,) = found.result.outputs
        internal = set(found.internal)
        if follower is not None:
            internal |= follower.internal | (set() if self.is_read(result, steps) else {result})
        name = f"attention_{result}" if follower is None else follower.name
        group = _named(name, attention, frozenset(internal))
        if not self._may_gather(steps, sides) or self._overwrites(group):
            return
        tile = choose(group)
        if tile is not None:
            attention = replace(attention, tile=tile)
            made = [replace(group, attention=attention)] if tile.parts == 1 else self._divided(group, attention)
            self._replace(steps, made, sides)

    def _divided(self, group: AttentionGroup, attention: Attention) -> list[Group]:
        """The launch whose programs share keys, and the loops that join what they store."""
        found = divide_keys(attention, group.name, self.lowered, self.buffers)
        members, ranges, inner_ranges = collapse_group(found.members, len(LOOPS), self.lowered.sizes)
        written = {name for member in members for name in member.outputs}
        internal = (group.internal | found.hidden) & written
        reads, writes = _arguments(members, internal)
        join = Group(group.name, members, ranges, internal, reads, writes, inner_ranges)
        return [_named(f"{group.name}_parts", found.launch, group.internal), join]

    # ---- sides and what follows -------------------------------------------------------------------

    def _sides(self, found: AttentionCandidate) -> list[_Side]:
        batch, rows, count = found.batch, found.rows, found.count
        ranges = {
            QUERIES: (batch, rows, found.depth),
            KEYS: (batch, found.depth, count),
            VALUES: (batch, count, found.width),
        }
        queries, keys, values = [
            self._side(kind, *found.sides[kind], ranges[kind], found.steps) for kind in (QUERIES, KEYS, VALUES)
        ]
        exact = [_unwidened(side) for side in (queries, keys)]
        if exact[0] is not None and exact[1] is not None and exact[0].dtype is exact[1].dtype:
            return [exact[0], exact[1], values]
        return [queries, keys, values]

    def _side(
        self,
        kind: str,
        buffer: str,
        index: Expr,
        dtype: torch.dtype,
        ranges: tuple[Any, Any, Any],
        steps: Sequence[Group | Extern],
    ) -> _Side:
        """What makes an element of a side: loops of an earlier group that nothing else reads, or a load."""
        source = None if self.is_read(buffer, steps) else self.writer(buffer)
        if source is not None and not source.inner_ranges:
            (member,) = [one for one in source.members if buffer in one.outputs]
            body = _moved_side(kind, member, source, index, ranges, self.lowered)
            if body is not None:
                loops = renamed(replace(member, outputs=(kind,), body=body), kind, self.lowered)
                return _Side(loops, dtype, source, member)
        load, store = (buffer, IndexRef(0), None, 0), (kind, IndexRef(0), Ref(0), None, None)
        loops = Loops(
            (kind,), LoopBody(LOOPS, ranges, (), (), (index,), (Op("load", load, dtype), Op("store", store, None)))
        )
        return _Side(renamed(loops, kind, self.lowered), dtype)

    def _follower(self, found: AttentionCandidate) -> tuple[list[Loops], Group | None]:
        """The loops that read the result, element by element."""
        (result,) = found.result.outputs
        place = found.result.body.indices[0]
        at = next(at for at, step in enumerate(self.steps) if step is found.steps[-1])
        for step in self.steps[at + 1 :]:
            if result in self.effects(step)[0]:
                if type(step) is not Group or step.inner_ranges:
                    break
                ranges = (found.batch, found.rows, found.width)
                moved = over_elements(step, [result], ranges, self.lowered, place=place)
                return ([], None) if moved is None else (moved, step)
        return [], None

    # ---- order ------------------------------------------------------------------------------------

    def _may_gather(self, steps: Sequence[Group | Extern], sides: Sequence[_Side]) -> bool:
        """True if all steps, and the loops of sides, may run where the last step does."""
        places = {id(step): at for at, step in enumerate(self.steps)}
        end = places[id(steps[-1])]
        sources = [side.source for side in sides if side.source is not None]
        inside = {id(step) for step in (*steps, *sources)}
        for step in (*steps, *sources):
            reads, writes, fixed = self.effects(step)
            for other in self.steps[places[id(step)] + 1 : end]:
                if id(other) in inside:
                    continue
                others_read, others_write, stays = self.effects(other)
                if any(step is one for one in sources):  # stays where it is, perhaps without some loops
                    clash = reads & others_write
                else:
                    clash = writes & (others_read | others_write) or reads & others_write
                if fixed or stays or clash:
                    return False
        return True

    def _overwrites(self, group: AttentionGroup) -> bool:
        """True if programs would write where others still read."""
        owners = {memory_owner(name, self.buffers) for name in group.operands}
        return any(memory_owner(name, self.buffers) in owners for name in group.writes)

    def _replace(self, steps: Sequence[Group | Extern], made_of: Sequence[Group], sides: Sequence[_Side]) -> None:
        gone = {id(step) for step in steps[:-1]}
        moved = {id(side.member) for side in sides if side.member is not None}
        made: list[Group | Extern] = []
        for step in self.steps:
            if step is steps[-1]:
                made += made_of
            elif any(step is side.source for side in sides):
                assert isinstance(step, Group)
                kept = [member for member in step.members if id(member) not in moved]
                if kept:
                    made.append(_with_members(step, kept))
            elif id(step) not in gone:
                made.append(step)
        self.steps, self.writers = made, None


def _fits(size: Any) -> bool:
    return isinstance(size, int) and _LEAST_WIDTH <= size <= _MOST_WIDTH


# ---- loops in terms of other loops --------------------------------------------------------------


def _moved_side(
    kind: str,
    member: Loops,
    source: Group,
    index: Expr,
    ranges: tuple[Any, Any, Any],
    lowered: Lowered,
) -> LoopBody | None:
    """The body of a member of a group that stores the elements of a side, in terms of the side's loops. Each program
    computes keys and values anew, so that these may only be copies, along loops that stay loops."""
    body, limits = member.body, lowered.sizes.ranges(LOOPS, ranges)
    written = {name for one in source.members for name in one.outputs}
    names = [op.name for op in body.ops]
    if body.ranges != source.ranges or body.reduction_vars or names.count("store") != 1:
        return None
    if not _REDUCTIONS.isdisjoint(names) or "indirect" in names:
        return None
    if any(op.name == "load" and op.args[0] in written for op in body.ops):
        return None
    copies = _COPIES.issuperset(names) and names.count("load") == 1
    if kind != QUERIES and not copies:
        return None
    store = body.ops[-1]
    if store.name != "store" or store.args[3:] != (None, None):
        return None
    where = loops_at(source, body.indices[store.args[1].position], index, lowered.sizes)  # type: ignore[union-attr]
    if where is None:
        return None
    indices = tuple([simplify(one.substitute(where), limits) for one in body.indices])
    if copies and any(one.coefficient(loop) is None for one in indices for loop in LOOPS[1:]):
        return None
    ops = (*body.ops[:-1], Op("store", (kind, *store.args[1:]), None))
    return LoopBody(LOOPS, ranges, (), (), indices, ops)


def _unwidened(side: _Side) -> _Side | None:
    """A side in half floats without the last cast to float32: products of half floats are exact in float32."""
    body = side.loops.body
    if side.dtype is not torch.float32 or len(body.ops) < 3:
        return None
    *ops, cast, store = body.ops
    source = ops[cast.args[0].position] if cast.name == "to_dtype" else cast  # type: ignore[union-attr]
    if cast.name != "to_dtype" or source.dtype not in DTYPES:
        return None
    ops.append(replace(store, args=(*store.args[:2], cast.args[0], *store.args[3:])))
    return replace(side, loops=replace(side.loops, body=replace(body, ops=tuple(ops))), dtype=source.dtype)


def _with_members(group: Group, members: Sequence[Loops]) -> Group:
    """The group with some of its members."""
    reads, writes = _arguments(members, group.internal)
    internal = group.internal & {name for member in members for name in member.outputs}
    return replace(group, members=tuple(members), internal=internal, reads=reads, writes=writes)


def _arguments(members: Sequence[Loops], hidden: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Buffers in memory, in the order of their first use."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for member in members:
        for op in member.body.ops:
            buffer: Any = op.args[0] if op.args else None
            if op.name == "load" and buffer not in hidden and buffer not in writes:
                reads[buffer] = None
            elif op.name == "store" and buffer not in hidden:
                writes[buffer] = None
    return tuple(reads), tuple(writes)


def _named(name: str, attention: Attention, internal: frozenset[str]) -> AttentionGroup:
    sides = [attention.queries, attention.keys, attention.values]
    sides += [] if attention.tangent is None else [attention.tangent]
    members = (*sides, *attention.scores, *attention.epilogue)
    reads, writes = _arguments(members, {*internal, *LOOPS_OF, PRODUCTS})
    inside = internal & {name for member in members for name in member.outputs}
    return AttentionGroup(name, members, (), inside, reads, (*writes, *attention.statistics), attention=attention)
