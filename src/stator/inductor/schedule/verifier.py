"""The rules of a schedule, checked. Raises VerificationError; never repairs."""

from __future__ import annotations

from stator.base.errors import VerificationError
from stator.inductor.buffers import Extern, Lowered
from stator.shapes.expr import Expr

from .accesses import extern_reads, extern_writes, facts_of, names_in
from .groups import Group, Schedule


def verify_schedule(schedule: Schedule, lowered: Lowered) -> None:
    """Everything computed once, in an order that respects reads after writes; groups consistent in themselves."""
    pending: dict[str, int] = {}  # writers still to come, per buffer
    for node in lowered.nodes:
        for name in extern_writes(node) if isinstance(node, Extern) else facts_of(node).writes:
            pending[name] = pending.get(name, 0) + 1
    for step in schedule.steps:
        if isinstance(step, Extern):
            _require_ready("a library call", extern_reads(step) - extern_writes(step), pending)
            for name in extern_writes(step):
                pending[name] -= 1
        else:
            _verify_group(step, pending)
    lost = [name for name in names_in(lowered.outputs) if pending.get(name, 0) > 0]
    if lost:
        raise VerificationError(f"outputs that are never complete: {sorted(lost)}")
    internal = {name for step in schedule.steps if isinstance(step, Group) for name in step.internal}
    hidden = internal & names_in(lowered.outputs)
    if hidden:
        raise VerificationError(f"outputs without memory: {sorted(hidden)}")


def _require_ready(what: str, reads: set[str] | frozenset[str], pending: dict[str, int]) -> None:
    late = [name for name in reads if pending.get(name, 0) > 0]
    if late:
        raise VerificationError(f"{what} reads {sorted(late)} before they are complete")


def _verify_group(group: Group, pending: dict[str, int]) -> None:
    written: dict[str, set[Expr]] = {}
    shared = len(group.ranges)
    reads: set[str] = set()
    writes: set[str] = set()
    for member in group.members:
        body, facts = member.body, facts_of(member)
        if body.ranges[:shared] != group.ranges:
            raise VerificationError(f"{group.name}: a member loops over {body.ranges}, not {group.ranges}")
        inner = body.ranges[shared:] + body.reduction_ranges
        if inner and inner != group.inner_ranges:
            raise VerificationError(f"{group.name}: a member has inner loops {inner}, not {group.inner_ranges}")
        _require_ready(group.name, facts.reads - written.keys(), pending)
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
        for name in facts.writes:
            pending[name] -= 1
    if reads - set(group.reads) or set(group.reads) & group.internal:
        raise VerificationError(f"{group.name}: its reads are {group.reads}, its members read {sorted(reads)}")
    if writes != set(group.writes) | group.internal:
        raise VerificationError(f"{group.name}: its writes are {group.writes}, its members write {sorted(writes)}")
