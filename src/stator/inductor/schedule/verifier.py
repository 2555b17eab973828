"""Checks the rules of a schedule. Raises VerificationError; never repairs."""

from __future__ import annotations

from typing import Any

from stator.base.errors import VerificationError
from stator.inductor.buffers import Extern, Loops, Lowered
from stator.shapes.expr import Expr

from .accesses import extern_reads, extern_writes, names_in, summarize
from .attention_candidates import LOOPS_OF
from .groups import (
    OF_KEYS,
    OF_QUERIES,
    OF_SCORES,
    OF_VALUES,
    PRODUCTS,
    SUMS,
    Attention,
    AttentionGroup,
    Combination,
    ConvolutionGroup,
    Group,
    ProductGroup,
    Schedule,
)


def verify_schedule(schedule: Schedule, lowered: Lowered) -> None:
    """Every buffer is computed once, in an order that puts writes before their readers; each group is consistent."""
    progress = _Progress(lowered)
    for step in schedule.steps:
        if isinstance(step, Extern):
            progress.require("a library call", step, extern_reads(step) - extern_writes(step))
            progress.record(extern_writes(step))
        elif isinstance(step, Combination):
            _verify_combination(step, progress)
        else:
            _verify_group(step, progress)
    lost = [name for name in names_in(lowered.outputs) if progress.done.get(name, 0) < progress.writers.get(name, 0)]
    if lost:
        raise VerificationError(f"outputs that are never complete: {sorted(lost)}")
    internal = {
        name
        for step in schedule.steps
        if not isinstance(step, Extern)
        for part in (step.parts if isinstance(step, Combination) else (step,))
        for name in part.internal
    }
    hidden = internal & names_in(lowered.outputs)
    if hidden:
        raise VerificationError(f"outputs without memory: {sorted(hidden)}")


class _Progress:
    """Counts the writers of each buffer that have run. A reader needs the writers before it in the program: it may read
    one part of a buffer before a later part is written.
    """

    def __init__(self, lowered: Lowered) -> None:
        self.done: dict[str, int] = {}
        self.writers: dict[str, int] = {}
        self.needed: dict[tuple[tuple[str | None, ...], str], int] = {}  # by the reader's outputs and the buffer
        for node in lowered.nodes:
            reads, writes = (
                (extern_reads(node), extern_writes(node))
                if isinstance(node, Extern)
                else (summarize(node).reads, summarize(node).writes)
            )
            for name in reads:
                before = self.writers.get(name, 0)
                key = (node.outputs, name)
                self.needed[key] = min(self.needed.get(key, before), before)
            for name in writes:
                self.writers[name] = self.writers.get(name, 0) + 1

    def require(self, what: str, node: Extern | Loops, reads: set[str] | frozenset[str]) -> None:
        late = [name for name in reads if self.done.get(name, 0) < self.needed.get((node.outputs, name), 0)]
        if late:
            raise VerificationError(f"{what} reads {sorted(late)} before they are complete")

    def record(self, writes: set[str] | frozenset[str]) -> None:
        for name in writes:
            self.done[name] = self.done.get(name, 0) + 1


def _verify_combination(step: Combination, progress: _Progress) -> None:
    for part in step.parts:
        others = [other for other in step.parts if other is not part]
        used = {name for other in others for name in (*other.reads, *other.writes)}
        meeting = used.intersection(part.writes)
        if meeting:
            raise VerificationError(f"{step.name}: {part.name} writes {sorted(meeting)}, which other parts use")
        _verify_group(part, progress)


def _verify_products(group: ProductGroup, progress: _Progress) -> None:
    """The sides are complete, and each part's members loop over that part's elements."""
    products = group.products
    for call in [step for steps in products.steps for step in steps if isinstance(step, Extern)]:
        progress.require(group.name, call, extern_reads(call) - extern_writes(call))
    reads = {*products.operands}
    writes: set[str] = set()
    for part in products.parts:
        for member in part.epilogue:
            facts = summarize(member)
            if member.body.ranges != (products.batch, products.rows, part.columns) or facts.reduces:
                raise VerificationError(f"{group.name}: a member loops over {member.body.ranges}")
            needed = facts.reads - writes - {*part.sums}
            progress.require(group.name, member, needed)
            reads |= needed
            writes |= facts.writes
            progress.record(facts.writes)
    if reads != set(group.reads) or writes != set(group.writes) | group.internal:
        raise VerificationError(f"{group.name}: its members read {sorted(reads)} and write {sorted(writes)}")


def _verify_attention(group: AttentionGroup, progress: _Progress) -> None:
    """Each kind of loops runs over its own elements, and reads what is complete."""
    attention = group.attention
    batch, rows, count = attention.batch, attention.rows, attention.count
    parts = 1 if attention.tile is None else attention.tile.parts
    kinds = [
        ((attention.queries,), (batch, rows, attention.depth)),
        ((attention.keys,), (batch, attention.depth, count)),
        ((attention.values,), (batch, count, attention.width)),
        (attention.scores, (batch, rows, count)),
    ]
    if attention.tangent is None:
        kinds.append((attention.epilogue, (batch * parts, rows, attention.width)))
    else:
        kinds.append(((attention.tangent,), (batch, rows, attention.width)))
        kinds += [((member,), _sizes_of_gradient(member, attention)) for member in attention.epilogue]
    passed = {*LOOPS_OF, PRODUCTS}
    reads: set[str] = set()
    writes = {*attention.statistics}
    for members, ranges in kinds:
        for member in members:
            facts = summarize(member)
            if member.body.ranges != ranges or facts.reduces:
                raise VerificationError(f"{group.name}: a member loops over {member.body.ranges}")
            needed = facts.reads - writes - passed
            progress.require(group.name, member, needed)
            reads |= needed
            writes |= facts.writes - passed
    for step in attention.steps:
        progress.record(extern_writes(step) if isinstance(step, Extern) else {*step.writes, *step.internal})
    if reads != set(group.reads) or writes != set(group.writes) | group.internal:
        raise VerificationError(f"{group.name}: its members read {sorted(reads)} and write {sorted(writes)}")


def _sizes_of_gradient(member: Loops, attention: Attention) -> tuple[Any, Any, Any]:
    """The sizes of the gradient that loops of an epilogue store."""
    (kind,) = summarize(member).reads
    sizes = {
        OF_QUERIES: (attention.rows, attention.depth),
        OF_KEYS: (attention.depth, attention.count),
        OF_VALUES: (attention.count, attention.width),
        OF_SCORES: (attention.rows, attention.count),
    }
    return attention.batch, *sizes[kind]


def _verify_convolution(group: ConvolutionGroup, progress: _Progress) -> None:
    """The images and the weight are complete, and members loop over the elements of the convolution."""
    convolution = group.convolution
    progress.require(group.name, group.call, extern_reads(group.call))
    reads = {group.images.base, group.weight.base}
    writes: set[str] = set()
    for member in group.members:
        facts = summarize(member)
        if member.body.ranges != (1, convolution.rows, convolution.columns) or facts.reduces:
            raise VerificationError(f"{group.name}: a member loops over {member.body.ranges}")
        needed = facts.reads - writes - {SUMS}
        progress.require(group.name, member, needed)
        reads |= needed
        writes |= facts.writes
        progress.record(facts.writes)
    if reads != set(group.reads) or writes != set(group.writes) | group.internal or reads & writes:
        raise VerificationError(f"{group.name}: its members read {sorted(reads)} and write {sorted(writes)}")


def _verify_group(group: Group, progress: _Progress) -> None:
    if isinstance(group, ConvolutionGroup):
        _verify_convolution(group, progress)
        return
    if isinstance(group, AttentionGroup):
        _verify_attention(group, progress)
        return
    if isinstance(group, ProductGroup):
        _verify_products(group, progress)
        return
    written: dict[str, set[Expr]] = {}
    shared = len(group.ranges)
    reads: set[str] = set()
    writes: set[str] = set()
    for member in group.members:
        body, facts = member.body, summarize(member)
        if body.ranges[:shared] != group.ranges:
            raise VerificationError(f"{group.name}: a member loops over {body.ranges}, not {group.ranges}")
        inner = body.ranges[shared:] + body.reduction_ranges
        if inner and inner != group.inner_ranges:
            raise VerificationError(f"{group.name}: a member has inner loops {inner}, not {group.inner_ranges}")
        progress.require(group.name, member, facts.reads - written.keys())
        for access in facts.loads:
            if access.buffer in written and access.index not in written[access.buffer]:
                raise VerificationError(
                    f"{group.name}: {access.buffer}[{access.index}] is read, but written at "
                    f"{sorted(map(str, written[access.buffer]))}"
                )
        reads |= facts.reads - written.keys()
        for access in facts.stores:
            written.setdefault(access.buffer, set()).add(access.index)
            writes.add(access.buffer)
        progress.record(facts.writes)
    if reads - set(group.reads) or set(group.reads) & group.internal:
        raise VerificationError(f"{group.name}: its reads are {group.reads}, its members read {sorted(reads)}")
    if writes != set(group.writes) | group.internal:
        raise VerificationError(f"{group.name}: its writes are {group.writes}, its members write {sorted(writes)}")
