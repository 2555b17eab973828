"""The scheduler's entry point: turns lowered nodes into an ordered list of fused groups and library calls.

The scheduler takes nodes in order. It tries to fuse each with the groups that compute its operands, latest first, then
with groups that read the same buffers. legality.py and profit.py judge a fusion; dependencies, cycles and the final
order are found here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from stator.base.config import Options
from stator.graph.ir.schema import has_effects
from stator.inductor.buffers import Buffer, Extern, Loops, Lowered
from stator.inductor.devices import traits_of
from stator.inductor.loops.handler import INDIRECT
from stator.prims.operators.checks import check, require_sizes
from stator.shapes.expr import Symbol

from .accesses import extern_reads, extern_writes, memory_owner, names_in, summarize, symbols_needed
from .groups import Group, Schedule
from .legality import FusionCandidate, fuse, single_node_candidate
from .profit import exceeds_limits, is_profitable
from .regroup import make_group
from .space import FreshSymbols, space_of
from .verifier import verify_schedule

_DEFAULT = Options()
_CYCLE_SEARCH = 256  # steps visited before the search for a dependency gives up the fusion
_SIBLINGS = 4  # groups tried that read the same buffer


@dataclass(slots=True, eq=False)
class ScheduleStep:
    """A library call or a growing group. `needs`: steps that must run before. `last`: position of its last node.
    `rank`: a topological number, greater than the ranks of all steps in `needs`."""

    content: FusionCandidate | Extern
    last: int
    rank: int
    needs: set[ScheduleStep] = field(default_factory=set)
    merged_into: ScheduleStep | None = None


def schedule(lowered: Lowered, options: Options = _DEFAULT) -> Schedule:
    """Raises VerificationError (options.verify) when the result breaks a rule of schedules."""
    result = _Scheduler(lowered, options).run()
    if options.verify:
        verify_schedule(result, lowered)
    return result


class _Scheduler:
    def __init__(self, lowered: Lowered, options: Options) -> None:
        self.lowered, self.options = lowered, options
        self.names = FreshSymbols()
        self.buffers: dict[str, Buffer] = lowered.buffers
        self.knowledge = lowered.sizes
        self.sizes = {name: math.prod(self.knowledge.hints(b.layout.size)) for name, b in self.buffers.items()}
        self.steps: list[ScheduleStep] = []
        self.by_rank: list[ScheduleStep | None] = []  # None in place of a merged step
        self.writers: dict[str, list[ScheduleStep]] = {}  # by memory owner
        self.readers: dict[str, list[ScheduleStep]] = {}  # by memory owner, since the last write
        self.sharers: dict[str, list[ScheduleStep]] = {}  # loop groups by the buffer they read
        self.read_count: dict[str, int] = {}
        self.effect: ScheduleStep | None = None  # the last call that drew random numbers or communicated
        self.binders: dict[Symbol, ScheduleStep] = {}  # the calls that tell sizes that depend on data
        self.assumption: ScheduleStep | None = None  # the last check of such sizes, which all later nodes rely on
        self.check: ScheduleStep | None = None  # the last check of data: its error precedes those of later indices
        self.owners = {name: memory_owner(name, self.buffers) for name in self.buffers}
        self._count_reads()

    def run(self) -> Schedule:
        for position, node in enumerate(self.lowered.nodes):
            if isinstance(node, Extern):
                self._add_extern(position, node)
            else:
                self._add_loops(position, node)
        alive = self._ordered()
        used_outside = self._read_outside(alive)
        steps: list[Group | Extern] = []
        for at, step in enumerate(alive):
            if isinstance(step.content, Extern):
                steps.append(step.content)
            elif used_outside[step]:  # else nothing reads its results
                internal = frozenset(step.content.writes - used_outside[step])
                steps.append(make_group(f"kernel{at}", step.content, internal, self.knowledge))
        return Schedule(tuple(steps))

    def _count_reads(self) -> None:
        for node in self.lowered.nodes:
            reads = extern_reads(node) if isinstance(node, Extern) else _loads(node)
            for name in reads:
                self.read_count[name] = self.read_count.get(name, 0) + 1
        for name in names_in(self.lowered.outputs):
            self.read_count[name] = self.read_count.get(name, 0) + 1

    # ---- dependencies -----------------------------------------------------------------------------

    def _needs(self, reads: Iterable[str], writes: Iterable[str]) -> set[ScheduleStep]:
        found: set[ScheduleStep] = set()
        for name in reads:
            found.update(self.writers.get(self.owners.get(name, name), ()))
        for name in writes:
            memory = self.owners.get(name, name)
            found.update(self.writers.get(memory, ()))
            found.update(self.readers.get(memory, ()))
        return {_alive(step) for step in found}

    def _needs_of_sizes(self, node: Loops | Extern) -> set[ScheduleStep]:
        """The steps that tell the sizes of a node, and the check of all that the node relies on about sizes."""
        if not self.binders:
            return set()
        symbols = symbols_needed(node, self.buffers)
        found = {step for symbol, step in self.binders.items() if symbol in symbols}
        return found if self.assumption is None else found | {self.assumption}

    def _record(self, step: ScheduleStep, reads: Iterable[str], writes: Iterable[str]) -> None:
        for name in reads:
            self.readers.setdefault(self.owners.get(name, name), []).append(step)
        for name in writes:
            self.writers.setdefault(self.owners.get(name, name), []).append(step)

    def _add_extern(self, position: int, node: Extern) -> None:
        reads, writes = extern_reads(node), extern_writes(node)
        step = self._new_step(node, position, self._needs(reads, writes) | self._needs_of_sizes(node))
        for symbol, _ in node.binds:
            self.binders.setdefault(symbol, step)
        if node.target is require_sizes:
            self.assumption = step
        elif node.target is check:
            self.check = step
        if has_effects(node.target, node.args, node.kwargs):
            if self.effect is not None:  # all processes take part in collectives in the order of the program
                step.needs.add(self.effect)
            self.effect = step
        self._record(step, reads, writes)

    def _new_step(self, content: FusionCandidate | Extern, position: int, needs: set[ScheduleStep]) -> ScheduleStep:
        step = ScheduleStep(content, position, len(self.by_rank), needs)
        self.steps.append(step)
        self.by_rank.append(step)
        return step

    # ---- fusion -----------------------------------------------------------------------------------

    def _add_loops(self, position: int, node: Loops) -> None:
        facts = summarize(node)
        space, member = space_of(node, self.names, self.knowledge)
        content = single_node_candidate(space, member, facts, self.knowledge)
        content.mutates = {self.owners[name] for name in facts.writes if self.owners[name] != name}
        content.touches = {self.owners[name] for name in facts.reads}
        needs = self._needs(facts.reads, facts.writes) | self._needs_of_sizes(node)
        if self.check is not None and any(op.name == INDIRECT and op.args[2] for op in node.body.ops):
            needs.add(self.check)
        step = self._new_step(content, position, needs)
        self._record(step, facts.reads, facts.writes)
        if self.options.fusion and facts.iterations != 0:
            self._grow(step, facts.reads)
        for name in facts.reads:
            self.sharers.setdefault(name, []).append(step)

    def _grow(self, step: ScheduleStep, reads: frozenset[str]) -> None:
        """Merge the step with earlier groups as long as a fusion is legal and worth it."""
        tried: set[ScheduleStep] = set()
        while True:
            producers = sorted(
                (s for s in step.needs if isinstance(s.content, FusionCandidate) and s not in tried),
                key=lambda s: -s.last,
            )
            if not producers:
                break
            tried.add(producers[0])
            self._try(producers[0], step)
        for name in sorted(reads, key=lambda name: (-self.sizes[name], name))[:2]:
            for sharer in reversed(self.sharers.get(name, ())[-_SIBLINGS:]):
                earlier = _alive(sharer)
                if earlier is not step and earlier not in tried:
                    tried.add(earlier)
                    self._try(earlier, step)

    def _try(self, earlier: ScheduleStep, step: ScheduleStep) -> bool:
        first, second = earlier.content, step.content
        assert isinstance(first, FusionCandidate) and isinstance(second, FusionCandidate)
        if exceeds_limits(first, second):
            return False
        fusion = fuse(first, second, self.sizes, self.names, self.knowledge)
        traits = traits_of(self.buffers[next(iter(second.writes))].layout.device)
        if fusion is None or not is_profitable(
            first, second, fusion, self.sizes, self.read_count, self.knowledge, traits
        ):
            return False
        if self._reaches(earlier, step) or self._follows(earlier, step):
            return False
        step.content = FusionCandidate(
            fusion.space,
            fusion.members,
            fusion.facts,
            first.reads | second.reads,
            first.writes | second.writes,
            first.mutates | second.mutates,
            first.touches | second.touches,
            fusion.widest,
            fusion.lanes_first | fusion.lanes_second,
        )
        step.last = max(earlier.last, step.last)
        self._rank_as_one(earlier, step)
        step.needs = {_alive(s) for s in step.needs | earlier.needs} - {earlier, step}
        earlier.merged_into = step
        return True

    def _rank_as_one(self, earlier: ScheduleStep, step: ScheduleStep) -> None:
        """Update ranks when two steps become one, where neither needs the other through a third step. Of the steps
        ranked between them, those that need the earlier step move behind both, and all others before both."""
        low, high = sorted((earlier, step), key=lambda one: one.rank)
        before: list[ScheduleStep | None] = []
        behind: set[ScheduleStep] = set()
        start, end = low.rank, high.rank
        for at in self.by_rank[start + 1 : end]:
            if at is None:
                continue
            if any((need := _alive(one)) is low or need in behind for one in at.needs):
                behind.add(at)
            else:
                before.append(at)
        after = [at for at in self.by_rank[start + 1 : end] if at in behind]
        places = [*before, step, *after]
        places += [None] * (end + 1 - start - len(places))
        self.by_rank[start : end + 1] = places
        for rank, at in enumerate(places, start):
            if at is not None:
                at.rank = rank

    def _reaches(self, earlier: ScheduleStep, step: ScheduleStep) -> bool:
        """True if `step` depends on `earlier` through a third step, or if the search becomes too long to tell."""
        pending = [_alive(s) for s in step.needs]
        pending = [s for s in pending if s is not earlier]
        seen: set[ScheduleStep] = set()
        while pending:
            at = pending.pop()
            if at in seen or at.rank < earlier.rank:
                continue
            seen.add(at)
            if len(seen) > _CYCLE_SEARCH:
                return True
            for need in at.needs:
                need = _alive(need)
                if need is earlier:
                    return True
                pending.append(need)
        return False

    def _follows(self, earlier: ScheduleStep, step: ScheduleStep) -> bool:
        """True if `earlier` depends on `step`, which may have taken in groups that lie before `earlier`."""
        if earlier.rank < step.rank:
            return False
        return any(_alive(need) is step for need in earlier.needs) or self._reaches(step, earlier)

    # ---- the final order --------------------------------------------------------------------------

    def _ordered(self) -> list[ScheduleStep]:
        """Dependencies come first; among ready steps, the first in the program comes first."""
        alive = [step for step in self.steps if step.merged_into is None]
        waiting: dict[ScheduleStep, int] = {}
        users: dict[ScheduleStep, list[ScheduleStep]] = {step: [] for step in alive}
        for step in alive:
            step.needs = {_alive(need) for need in step.needs} - {step}
            waiting[step] = len(step.needs)
            for need in step.needs:
                users[need].append(step)
        ready = [(step.last, at, step) for at, step in enumerate(alive) if not waiting[step]]
        heapq.heapify(ready)
        order: list[ScheduleStep] = []
        count = len(alive)
        while ready:
            _, _, step = heapq.heappop(ready)
            order.append(step)
            for user in users[step]:
                waiting[user] -= 1
                if not waiting[user]:
                    count += 1
                    heapq.heappush(ready, (user.last, count, user))
        assert len(order) == len(alive), "fusion made a cycle"
        return order

    def _read_outside(self, alive: list[ScheduleStep]) -> dict[ScheduleStep, set[str]]:
        """For each group the buffers it writes that need memory, because others read, return or mutate them."""
        wanted = names_in(self.lowered.outputs)
        readers: dict[str, list[ScheduleStep]] = {}
        writers: dict[str, int] = {}
        for step in alive:
            content = step.content
            for name in content.reads if isinstance(content, FusionCandidate) else extern_reads(content):
                readers.setdefault(name, []).append(step)
            for name in content.writes if isinstance(content, FusionCandidate) else extern_writes(content):
                writers[name] = writers.get(name, 0) + 1
        found: dict[ScheduleStep, set[str]] = {}
        for step in alive:
            if isinstance(step.content, FusionCandidate):
                found[step] = {
                    name
                    for name in step.content.writes
                    if name in wanted
                    or writers[name] > 1
                    or self.owners[name] != name
                    or any(reader is not step for reader in readers.get(name, ()))
                }
        return found


def _alive(step: ScheduleStep) -> ScheduleStep:
    while step.merged_into is not None:
        step = step.merged_into
    return step


def _loads(node: Loops) -> set[str]:
    return {op.args[0] for op in node.body.ops if op.name == "load"}  # type: ignore[misc]
