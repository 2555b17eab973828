"""Combines small kernels that may run side by side into one launch, after all fusions and orders are decided.

On a device where starting a kernel takes as long as moving a few megabytes, a small kernel costs its start. A group may
wait for others until a step needs its results or changes what it reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from stator.inductor.buffers import Lowered
from stator.inductor.devices import traits_of
from stator.inductor.schedule.groups import Combination, Group, Schedule, TiledGroup
from stator.inductor.sizes import product
from stator.shapes.expr import Expr

from .aliases import AliasAnalysis, reads_of, typical_bytes, writes_of

# A kernel takes so many parts and buffers (its parameters have 4 KiB), and so many different ones, which are compiled
# one after the other.
_PARTS, _BUFFERS, _KINDS = 48, 200, 8
# Parts with rows have so many elements in a row at most, so that all parts suit a few warps.
_LONGEST_ROW = 1024
# Waiting groups keep so many bytes alive at most, for so many steps.
_WAITING_BYTES, _WAITING_STEPS = 32 << 20, 64


def combine_groups(schedule: Schedule, lowered: Lowered) -> Schedule:
    """Return the schedule with a Combination in place of groups that may run at one time."""
    return _Combiner(schedule, lowered).run()


@dataclass(slots=True)
class _Waiting:
    """Groups that may run side by side, at any time from the last one on. `reads`, `writes`: owners of memory."""

    device: torch.device
    since: int
    parts: list[Group] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    kinds: set[object] = field(default_factory=set)
    buffers: set[str] = field(default_factory=set)
    bytes: int = 0

    def meets(self, reads: set[str], writes: set[str]) -> bool:
        """True if a step must not run at the time of these groups, or before them."""
        return not (self.writes.isdisjoint(reads | writes) and self.reads.isdisjoint(writes))


class _Combiner:
    def __init__(self, schedule: Schedule, lowered: Lowered) -> None:
        self.schedule, self.lowered = schedule, lowered
        self.memory = AliasAnalysis(lowered.buffers, schedule.steps)
        self.steps: list[object] = []
        self.waiting: _Waiting | None = None

    def run(self) -> Schedule:
        for at, step in enumerate(self.schedule.steps):
            reads, writes = (
                {root for name in names for root in self.memory.roots(name)}
                for names in (reads_of(step, self.lowered.buffers), writes_of(step))
            )
            waiting = self.waiting
            if waiting is not None and (waiting.meets(reads, writes) or at - waiting.since > _WAITING_STEPS):
                self._release()
            need = self._small_bytes(step) if isinstance(step, Group) else None
            if need is None:
                self.steps.append(step)
            else:
                self._wait(at, step, need, reads, writes)  # type: ignore[arg-type]
        self._release()
        return Schedule(tuple(self.steps))  # type: ignore[arg-type]

    def _release(self) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is None:
            return
        parts = tuple(waiting.parts)
        self.steps.append(parts[0] if len(parts) == 1 else Combination(parts[-1].name, parts))

    def _wait(self, at: int, group: Group, need: int, reads: set[str], writes: set[str]) -> None:
        device = self.lowered.buffers[group.writes[0]].layout.device
        kind, buffers = _kind(group), {*group.reads, *group.writes}
        one = self.waiting
        if one is not None and (
            one.device != device
            or len(one.parts) == _PARTS
            or len(one.kinds | {kind}) > _KINDS
            or len(one.buffers | buffers) > _BUFFERS
            or one.bytes + need > _WAITING_BYTES
        ):
            self._release()
        if self.waiting is None:
            self.waiting = _Waiting(device, at)
        one = self.waiting
        one.parts.append(group)
        one.kinds.add(kind)
        one.bytes += need
        for own, more in ((one.reads, reads), (one.writes, writes), (one.buffers, buffers)):
            own |= more

    def _small_bytes(self, group: Group) -> int | None:
        """The bytes that the group moves, at most; None where it is no part for a combination."""
        if isinstance(group, TiledGroup):
            return None
        layouts = [self.lowered.buffers[name].layout for name in (*group.reads, *group.writes)]
        if len({layout.device for layout in layouts}) != 1:
            return None
        limit = traits_of(layouts[0].device).combined_bytes
        sizes = (*group.ranges, *group.inner_ranges)
        if not limit or any(isinstance(size, Expr) for size in sizes) or product(group.inner_ranges) > _LONGEST_ROW:
            return None
        iterations = product(sizes)
        most = [min(typical_bytes(one, self.lowered.sizes), iterations * one.dtype.itemsize) for one in layouts]
        return sum(most) if 0 < sum(most) <= limit else None


def _kind(group: Group) -> object:
    """Equal for groups that probably become equal kernels."""
    operations = tuple([tuple([(op.name, op.dtype) for op in member.body.ops]) for member in group.members])
    return group.ranges, group.inner_ranges, operations
