"""Proves over the scheduled steps which new contents of inputs a program may write straight into the inputs' memory.

An unproved content stays a fresh tensor that the caller copies. Nothing is reordered or rewritten here; steps that copy
an input onto itself go.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from stator.inductor.buffers import Buffer, Extern, Lowered
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.inductor.schedule.groups import Combination, Group, Schedule, TiledGroup
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge
from stator.shapes.expr import Expr, Symbol

from .aliases import AliasAnalysis, buffers_in, is_check, reads_of, writes_of


def write_inputs(lowered: Lowered, schedule: Schedule) -> tuple[Lowered, Schedule]:
    """Mark each new content of an input that may be written in place as living in that input.

    The buffer of such a content gets the input's name as `value`, and its output becomes None. An output that is the
    unchanged input itself becomes None too. Other outputs stay as they are. A scatter begins with a copy of its input,
    which is needless then.
    """
    if not lowered.mutated:
        return lowered, schedule
    uses = _Uses(lowered, schedule)
    buffers, outputs = dict(lowered.buffers), list(lowered.outputs)
    for name, position in lowered.mutated:
        value = outputs[position]
        if value == name:
            outputs[position] = None
        elif isinstance(value, str) and uses.may_write(name, value):
            buffers[value] = replace(buffers[value], value=name)
            outputs[position] = None
    steps = [step for step in (_without_own_copies(step, buffers) for step in schedule.steps) if step is not None]
    return replace(lowered, buffers=buffers, outputs=outputs), Schedule(tuple(steps))


def _without_own_copies(
    step: Group | Combination | Extern, buffers: Mapping[str, Buffer]
) -> Group | Combination | Extern | None:
    if isinstance(step, Combination):
        kept = tuple([part for part in step.parts if not _copies_onto_itself(part, buffers)])
        return replace(step, parts=kept) if len(kept) > 1 else kept[0] if kept else None
    return None if type(step) is Group and _copies_onto_itself(step, buffers) else step


def _copies_onto_itself(group: Group, buffers: Mapping[str, Buffer]) -> bool:
    """True if the group stores elements of an input into places of this input that they already have."""
    for member in group.members:
        if [op.name for op in member.body.ops] != ["load", "store"]:
            return False
        (source, place, mask, _), (target, where, _, mode, kept) = (op.args for op in member.body.ops)
        if buffers[target].value != source or place != where or (mask, mode, kept) != (None, None, None):  # type: ignore[index]
            return False
    return True


class _Uses:
    """The positions in the schedule at which the memory of each buffer is read and written."""

    def __init__(self, lowered: Lowered, schedule: Schedule) -> None:
        self.buffers: Mapping[str, Buffer] = lowered.buffers
        self.sizes = lowered.sizes
        self.steps = schedule.steps
        memory = AliasAnalysis(lowered.buffers, schedule.steps)
        self.own = memory.is_own
        self.readers: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)  # by owner of the memory
        self.writers: defaultdict[str, list[int]] = defaultdict(list)
        for position, step in enumerate(schedule.steps):
            for name in reads_of(step, lowered.buffers):
                for root in memory.roots(name):
                    self.readers[root].append((position, name))
            for name in writes_of(step):
                self.writers[name].append(position)
        checks = [at for at, step in enumerate(schedule.steps) if isinstance(step, Extern) and is_check(step)]
        self.last_check = max(checks, default=-1)
        returned = buffers_in(lowered.outputs, lowered.buffers)
        self.returned = Counter(root for name in returned for root in memory.roots(name))

    def may_write(self, old: str, new: str) -> bool:
        """True if each element of the input `old` is read for the last time before the buffer `new` overwrites it. A
        check that fails must find all inputs unchanged, because the program then begins anew."""
        if not self._fits(old, new):
            return False
        first = self.writers[new][0]
        if first < self.last_check:
            return False
        for position, name in self.readers[old]:
            if position > first:
                return False
            if position == first and not self._same_element(position, old, name, new):
                return False
        return True

    def _fits(self, old: str, new: str) -> bool:
        """True if the layouts are equal and no other output shows this memory to the caller."""
        one, other = self.buffers[old], self.buffers[new]
        if one.kind != "input" or other.kind != "computed" or not self.own(new) or not self.writers[new]:
            return False
        given, made = one.layout, other.layout
        same = (given.size, given.stride, given.dtype, given.device) == (
            made.size,
            made.stride,
            made.dtype,
            made.device,
        )
        if not same or made.offset != 0 or self.sizes.may_overlap(given.size, given.stride):
            return False
        if self.returned[new] != 1 or self.returned[old]:
            return False
        step = self.steps[self.writers[new][0]]
        return isinstance(step, Group | Combination) or (step.style == "out" and new in step.outputs)

    def _same_element(self, position: int, old: str, name: str, new: str) -> bool:
        step = self.steps[position]
        if isinstance(step, Combination):  # its parts run at one time
            touching = [part for part in step.parts if old in part.reads or new in (*part.reads, *part.writes)]
            if len(touching) != 1:
                return False
            (step,) = touching
        return not isinstance(step, Extern) and name == old and writes_where_it_read(step, old, new, self.sizes)


def writes_where_it_read(group: Group, old: str, new: str, sizes: SizeKnowledge = NUMBERS_ONLY) -> bool:
    """True if the kernel reads every element of `old` before it writes the element of `new` at the same address.

    The proof: all accesses to both have one common index, any two iterations with an access differ in that index, and
    no run over the inner loops follows the run that writes.
    """
    if isinstance(group, TiledGroup):
        return False
    outer, inner = _loops(group)
    runs = _Runs(frozenset(inner))
    index: Expr | None = None
    write_run = -1
    for member in group.members:
        runs.begin(member.body)
        for op in member.body.ops:
            run = runs.add(op)
            if op.name not in ("load", "store") or op.args[0] not in (old, new):
                continue
            place = runs.place(op)
            index = place if index is None else index
            if place is not index:
                return False
            if op.name == "load" and op.args[0] == new and write_run >= 0:
                continue  # the stored value is still in a register or in scratch memory
            if write_run >= 0 or op.args[0] != (old if op.name == "load" else new):
                return False
            if (inner and op.args[2] is not None) if op.name == "load" else op.args[3:] != (None, None):
                return False  # masked, or combined with the memory's content
            if op.name == "store":
                write_run = run
    if index is None or write_run < 0 or not _is_injective(sizes.loops_in(index), outer, inner, group):
        return False
    return index.symbols.isdisjoint(inner) or write_run == runs.last


def _loops(group: Group) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...]]:
    """The shared loops and the inner loops."""
    shared = len(group.ranges)
    widest = max((member.body for member in group.members), key=lambda body: len(body.vars) + len(body.reduction_vars))
    symbols = (*widest.vars, *widest.reduction_vars)
    return symbols[:shared], symbols[shared:]


def _is_injective(
    varies: frozenset[Symbol], outer: tuple[Symbol, ...], inner: tuple[Symbol, ...], group: Group
) -> bool:
    """Stores to a buffer never meet, so the loops that an index varies with take each of its values once. The index
    must vary with all shared loops, with all inner loops or none, and with nothing but loops."""
    if not varies <= {*outer, *inner}:
        return False
    inside = varies & set(inner)
    return all(symbol in varies for symbol, size in zip(outer, group.ranges, strict=True) if size not in (0, 1)) and (
        not inside
        or all(symbol in varies for symbol, size in zip(inner, group.inner_ranges, strict=True) if size not in (0, 1))
    )


class _Runs:
    """For each operation of a group the earliest run over the inner loops in which its operands are ready. A run begins
    when reductions are complete. `last`: the last run that computes anything."""

    def __init__(self, inner: frozenset[Symbol]) -> None:
        self.inner = inner
        self.last = 0
        self.stored: dict[str, tuple[int, bool]] = {}
        self.values: list[tuple[int, bool]] = []  # (run, varies with the inner loops)
        self.body: LoopBody | None = None

    def begin(self, body: LoopBody) -> None:
        self.body, self.values = body, []

    def place(self, op: Op) -> Expr:
        index = op.args[1]
        assert isinstance(index, IndexRef) and self.body is not None
        return self.body.indices[index.position]

    def add(self, op: Op) -> int:
        needed = [self.values[arg.position] for arg in op.args if isinstance(arg, Ref)]
        for arg in op.args:
            if isinstance(arg, IndexRef):
                needed += self._index(arg)
        if op.name == "load" and op.args[0] in self.stored:
            needed.append(self.stored[op.args[0]])
        run = max((run for run, _ in needed), default=0)
        inside = any(inside for _, inside in needed)
        if inside:
            self.last = max(self.last, run)
        if op.name == "store":
            self.stored[op.args[0]] = (run, inside)  # type: ignore[index]
        elif op.name == "scan":
            inside = True
        elif op.name in ("reduce", "welford"):
            run, inside = run + (1 if op.name == "reduce" else 2), False  # welford: two sums, one after the other
            if op.name == "welford":
                self.last = max(self.last, run - 1)
        self.values.append((run, inside))
        return run

    def _index(self, reference: IndexRef) -> list[tuple[int, bool]]:
        assert self.body is not None
        index = self.body.indices[reference.position]
        found = [(0, not index.symbols.isdisjoint(self.inner))]
        for symbol in index.symbols:
            if symbol.name.startswith("indirect"):
                found.append(self.values[int(symbol.name.removeprefix("indirect"))])
        return found
