"""Column sums beside row reductions: a kernel that runs parts of the rows one after the other, and adds up columns of
what it has in registers. The gradients of a layer norm's input and parameters read their operands once.

Where kernels do not share a reduction, lowering has split the sum of a long column into parts, whose sums other loops
add up; elsewhere the split is made here. The parts become the rows of one program, or of one iteration of the loop that
threads share. The order of all sums is fixed. A pass over a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from stator.inductor.buffers import Buffer, Extern, Layout, Loops, Lowered
from stator.inductor.devices import DeviceTraits, traits_of
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref
from stator.inductor.loops.handler import freeze
from stator.inductor.loops.replay import Replay
from stator.inductor.lower.split_reductions import Split, combined_results, is_separable, partial_results
from stator.inductor.lower.tensor import Stored, Tensor
from stator.inductor.sizes import SizeKnowledge, ceil_div
from stator.shapes.expr import Expr, Symbol, as_expr, floor_div

from .accesses import extern_reads, extern_writes, memory_owner, names_in, summarize
from .groups import Group, Schedule
from .regroup import group_of

MOST_COLUMNS = 4096  # that the accumulators of a program hold
PROGRAMS = 528  # that share the rows
_FEWEST_ROWS = 1024
# Where threads share the rows: parts of a number that does not depend on the threads, and their rows. More rows make
# sums less exact; fewer make the sums of parts cost as much as the rows.
_THREADS_FEWEST_ROWS, _THREAD_PARTS, _FEWEST_OF_PART, _MOST_OF_PART = 128, 64, 16, 256
# Columns that fill the lanes; that the nearest memory holds several times: sums, and the rows of which they are made
_FEWEST_COLUMNS, _THREADS_MOST_COLUMNS = 16, 1024
_NEAR = 24  # steps between groups that become one: values must not live much longer

Step = Group | Extern


@dataclass(frozen=True, slots=True)
class _ColumnSums:
    """A group that sums columns of parts, and may store what it sums: its loops run over parts, columns and the rows of
    a part. names: the buffers of sums."""

    group: Group
    parts: int
    columns: int
    rows: int
    names: frozenset[str]


def sum_columns_in_rows(schedule: Schedule, lowered: Lowered) -> tuple[Schedule, Lowered]:
    """Move column sums into kernels of rows that have most of their operands at hand."""
    if any(isinstance(step, Extern) and step.binds for step in schedule.steps):
        return schedule, lowered  # the order of checks of sizes is not looked at here
    joining = _Pass(list(schedule.steps), lowered)  # type: ignore[arg-type]
    return Schedule(tuple(joining.run())), replace(lowered, buffers=joining.buffers)


class _Pass:
    def __init__(self, steps: list[Step], lowered: Lowered) -> None:
        self.steps, self.lowered, self.buffers = steps, lowered, dict(lowered.buffers)
        self.outputs = names_in(lowered.outputs)

    def run(self) -> list[Step]:
        for step in list(self.steps):
            if not isinstance(step, Group) or not step.writes:
                continue
            if self.traits(step).programs:
                sums = _column_sums(step)
                if sums is not None and not self.outputs.intersection(sums.names):
                    self._move(sums)
            else:
                self._split_and_move(step)
        return self.steps

    def traits(self, group: Group) -> DeviceTraits:
        return traits_of(self.buffers[group.writes[0]].layout.device)

    def _split_and_move(self, group: Group) -> None:
        """Move the sums of a group that also computes what follows them; another group then does this."""
        before = list(self.steps), dict(self.buffers)
        split = _Splitting(self).split(group)
        if split is not None:
            at = self.steps.index(group)
            self.steps[at : at + 1] = split
            sums = _column_sums(split[0])
            if sums is None or not self._move(sums):
                self.steps, self.buffers = before

    def _move(self, sums: _ColumnSums) -> bool:
        """Try the groups of rows that share operands with the sums, the nearest first."""
        here = self.steps.index(sums.group)
        nearest = sorted(range(len(self.steps)), key=lambda at: abs(at - here))
        for at in nearest:
            rows = self.steps[at]
            if abs(at - here) > _NEAR:
                break
            if isinstance(rows, Group) and self._fits(rows, sums) and self._moved(rows, at, sums, here):
                return True
        return False

    def _fits(self, rows: Group, sums: _ColumnSums) -> bool:
        """Whether a kernel has the rows of which columns are summed, and most operands of the sums."""
        if type(rows) is not Group or rows is sums.group or len(rows.ranges) != 1 or len(rows.inner_ranges) != 1:
            return False
        count, columns = rows.ranges[0], rows.inner_ranges[0]
        if columns != sums.columns or not isinstance(count, int):
            return False
        fewest = _FEWEST_ROWS if self.traits(rows).programs else _THREADS_FEWEST_ROWS
        if count < fewest or not all(_sums_rows(member.body, sums, count) for member in sums.group.members):
            return False
        if any(memory_owner(name, self.buffers) != name for name in (*rows.writes, *sums.group.writes)):
            return False
        reads, given = {*sums.group.reads}, {*rows.reads, *rows.writes}
        before, after = {*sums.group.writes} & {*rows.reads}, reads & {*rows.writes}
        if before and after:
            return False
        shared = (reads & given) | before
        reduces = any(member.body.reduction_vars for member in rows.members)
        return reduces and 2 * sum(map(self._bytes, shared)) >= sum(map(self._bytes, reads))

    def _bytes(self, name: str) -> int:
        layout = self.buffers[name].layout
        count = 1
        for size in layout.size:
            count *= size if isinstance(size, int) else self.lowered.sizes.hint(size)
        return count * layout.dtype.itemsize

    # ---- order

    def _moved(self, rows: Group, at: int, sums: _ColumnSums, here: int) -> bool:
        """Put the sums into the place of the rows, if the order of all other steps allows it."""
        readers = [step for step in self.steps if not sums.names.isdisjoint(self._reads(step))]
        if not all(_adds_up(step, sums, self.lowered.sizes) for step in readers):
            return False
        between = self.steps[min(at, here) + 1 : max(at, here)]
        early = [step for step in readers if step in between]
        others = [step for step in between if step not in early]
        if any(self._meet(step, sums.group) for step in others):
            return False
        if rows in readers or any(self._meet(step, other) for step in early for other in (*others, rows)):
            return False
        joint = self._joined(rows, sums)
        if joint is None:
            return False
        parts = -(-rows.ranges[0] // joint.rows_each)
        for name in sums.names:
            layout = self.buffers[name].layout
            size = (parts, sums.columns)
            self.buffers[name] = Buffer(name, replace(layout, size=size, stride=(sums.columns, 1)))
        added = {id(step): _over_parts(step, parts) for step in readers if isinstance(step, Group)}
        self.steps = [
            new
            for step in self.steps
            if step is not sums.group and step not in early
            for new in ([joint, *(added[id(one)] for one in early)] if step is rows else [added.get(id(step), step)])
        ]
        return True

    def _meet(self, one: Step, other: Step) -> bool:
        """Whether the order of two steps matters."""
        writes, more = self._writes(one), self._writes(other)
        return not (writes.isdisjoint(more | self._reads(other)) and more.isdisjoint(self._reads(one)))

    def _reads(self, step: Step) -> set[str]:
        names = step.reads if isinstance(step, Group) else extern_reads(step)
        return {memory_owner(name, self.buffers) for name in names if name in self.buffers}

    def _writes(self, step: Step) -> set[str]:
        names = step.writes if isinstance(step, Group) else extern_writes(step)
        return {memory_owner(name, self.buffers) for name in names}

    # ---- the groups

    def _joined(self, rows: Group, sums: _ColumnSums) -> Group | None:
        """One group; None where the one reads what the other writes, in another order."""
        each = rows.rows_each or _rows_each(rows.ranges[0], self.traits(rows))
        own = tuple(
            [_over_rows(member, rows, sums, each, self.buffers, self.lowered.sizes) for member in sums.group.members]
        )
        first = not {*rows.reads}.isdisjoint(sums.group.writes)
        members = (*own, *rows.members) if first else (*rows.members, *own)
        if not _flows_in_place(members):
            return None
        writes = {*rows.writes, *sums.group.writes}
        elsewhere = self.outputs.union(*(self._reads(step) for step in self.steps if step not in (rows, sums.group)))
        hidden = {name for name in writes - sums.names if name not in elsewhere}
        return replace(
            rows,
            members=members,
            internal=rows.internal | sums.group.internal | hidden,
            reads=tuple(dict.fromkeys(name for name in (*rows.reads, *sums.group.reads) if name not in writes)),
            writes=tuple([name for name in (*rows.writes, *sums.group.writes) if name not in hidden]),
            rows_each=each,
        )


def _rows_each(count: int, traits: DeviceTraits) -> int:
    """Rows of a part; of a program 1, 2 or a multiple of four, so that several run at a time."""
    if not traits.programs:
        return min(max(-(-count // _THREAD_PARTS), _FEWEST_OF_PART), _MOST_OF_PART)
    each = ceil_div(count, PROGRAMS)
    return int(each if each <= 2 else -(-each // 4) * 4)


class _Splitting:
    """Cuts a group that sums columns in two: the sums of parts of the rows, and all that follows them. Gives
    lower/split_reductions.py its buffers and loops."""

    def __init__(self, owner: _Pass) -> None:
        self.owner, self.sizes = owner, owner.lowered.sizes
        self.freeze: Callable[..., LoopBody] = partial(freeze, dtype_of=_dtypes(owner.buffers), sizes=self.sizes)

    def split(self, group: Group) -> tuple[Group, Group] | None:
        """None where the group is no such group, or has loops along the rows that sum nothing."""
        if type(group) is not Group or len(group.ranges) != 1 or len(group.inner_ranges) != 1 or group.rows_each:
            return None
        (columns,), (rows,) = group.ranges, group.inner_ranges
        if not isinstance(columns, int) or not isinstance(rows, int):
            return None
        if not _FEWEST_COLUMNS <= columns <= _THREADS_MOST_COLUMNS or rows < _THREADS_FEWEST_ROWS:
            return None
        each = _rows_each(rows, self.owner.traits(group))
        cut = Split(0, each, -(-rows // each), rows % each == 0)
        first: list[Loops] = []
        behind: list[Loops] = []
        for member in group.members:
            if not member.body.reduction_vars and len(member.body.vars) == 1:
                behind.append(member)
            elif member.body.reduction_vars and is_separable(member.body):
                self._split_member(member, cut, first, behind)
            else:
                return None
        if {*_read(first)} & {name for member in behind for name in member.outputs}:
            return None
        return (
            group_of(group.name, first, (cut.pieces, columns), frozenset(), (each,)),
            group_of(f"{group.name}_sums", behind, (columns,), group.internal, (cut.pieces,)),
        )

    def _split_member(self, member: Loops, cut: Split, first: list[Loops], behind: list[Loops]) -> None:
        device = self.owner.buffers[member.outputs[0]].layout.device
        parts = partial_results(self, member.body, cut, device)
        first.append(replace(member, outputs=parts.names, body=parts.body))
        for outputs, body in combined_results(self, member.body, cut, parts, member.outputs, device):
            behind.append(replace(member, outputs=outputs, body=body))

    def new_buffer(self, shape: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        name = f"part_sums{len(self.owner.buffers)}"
        self.owner.buffers[name] = Buffer(name, Layout(shape, strides, dtype, device))
        return Tensor(shape, dtype, device, Stored(name, strides), sizes=self.sizes)


def _read(members: Sequence[Loops]) -> Iterator[str]:
    return (access.buffer for member in members for access in summarize(member).loads)


def _column_sums(step: Step) -> _ColumnSums | None:
    if type(step) is not Group or len(step.ranges) != 2 or len(step.inner_ranges) != 1:
        return None
    sizes = (*step.ranges, *step.inner_ranges)
    if not all(isinstance(size, int) for size in sizes) or step.ranges[1] > MOST_COLUMNS:
        return None
    names = frozenset(name for one in step.members if one.body.reduction_vars for name in one.outputs)
    found = _ColumnSums(step, *sizes, names)
    fits = all(_is_one_loop(member.body, found) for member in step.members)
    return found if fits and names and names <= {*step.writes} else None


def _is_one_loop(body: LoopBody, sums: _ColumnSums) -> bool:
    """True if parts and their rows are one loop in all indices, and reductions are sums of parts that are stored."""
    if len(body.vars) + len(body.reduction_vars) != 3:
        return False
    part, column, row = (*body.vars, *body.reduction_vars)
    place = part * sums.columns + column
    for op in body.ops:
        if op.name in ("welford", "indirect", "random"):
            return False
        if op.name == "store" and body.reduction_vars:
            _, index, value, mode, mask = op.args
            reduce = body.ops[value.position]  # type: ignore[union-attr]
            stored = body.indices[index.position]  # type: ignore[union-attr]
            if (reduce.name, reduce.args[0]) != ("reduce", "sum") or reduce.dtype is not torch.float32:
                return False
            if stored != place or mode is not None or mask is not None:
                return False
        elif (op.name == "store" and op.args[3:] != (None, None)) or any(
            isinstance(arg, IndexRef) and not _follows(body, arg, part, row, sums.rows) for arg in op.args
        ):
            return False
    return True


def _follows(body: LoopBody, reference: IndexRef, part: Symbol, row: Symbol, rows: int) -> bool:
    index = body.indices[reference.position]
    step = index.coefficient(row)
    return step is not None and index.coefficient(part) == step * rows


def _over_rows(
    member: Loops, rows: Group, sums: _ColumnSums, each: int, buffers: Mapping[str, Buffer], sizes: SizeKnowledge
) -> Loops:
    """The node with the loops of the rows: each element is added to the sum of its program and column."""
    body = member.body
    widest = max((other.body for other in rows.members), key=lambda one: len(one.vars) + len(one.reduction_vars))
    at_row, at_column = (*widest.vars, *widest.reduction_vars)
    part, column, row = (*body.vars, *body.reduction_vars)
    where: dict[Symbol, Any] = {part: as_expr(0), column: at_column, row: at_row}
    place = floor_div(at_row, each) * sums.columns + at_column
    inside = [at for at in range(len(body.ops)) if _is_inside(body, at, part * sums.rows + row, rows.ranges[0])]

    def function(ops: Any) -> None:
        replay = Replay(ops, body, where, {at: ops.constant(True, torch.bool) for at in inside})
        for op in body.ops:
            if op.name == "store" and not body.reduction_vars:
                replay.store(op)
            elif op.name == "store":
                value: Any = body.ops[op.args[2].position].args[1]  # type: ignore[union-attr]
                ops.store(op.args[0], place, replay.value(value.position), "row_sum")

    ranges = (*rows.ranges, *rows.inner_ranges)
    made = freeze(function, (at_row, at_column), ranges, (), (), _dtypes(buffers), sizes)
    return replace(member, body=made)


def _dtypes(buffers: Mapping[str, Buffer]) -> Callable[[str], torch.dtype]:
    return lambda name: buffers[name].layout.dtype


def _sums_rows(body: LoopBody, sums: _ColumnSums, count: int) -> bool:
    """True if the parts have so many rows, those behind the end of the last part left out."""
    if sums.parts * sums.rows == count:
        return True
    if not (sums.parts - 1) * sums.rows < count < sums.parts * sums.rows or not body.reduction_vars:
        return False
    row = body.vars[0] * sums.rows + body.reduction_vars[0]
    return all(
        _is_zero_behind(body, body.ops[op.args[1].position], row, count)  # type: ignore[union-attr]
        for op in body.ops
        if op.name == "reduce"
    )


def _is_zero_behind(body: LoopBody, summand: Op, row: Any, count: int) -> bool:
    if summand.name == "where":
        condition, _, other = summand.args
        zero = body.ops[other.position]  # type: ignore[union-attr]
        is_zero = zero.name == "constant" and zero.args[0] == 0
    else:
        condition = summand.args[2] if summand.name == "load" else None
        is_zero = condition is not None and summand.args[3] == 0
    return is_zero and _is_inside(body, condition.position, row, count)  # type: ignore[union-attr]


def _is_inside(body: LoopBody, at: int, row: Any, count: int) -> bool:
    """True for the condition that the last part has this row, which holds for all rows."""
    op = body.ops[at]
    if op.name != "lt":
        return False
    place, limit = (body.ops[arg.position] for arg in op.args if isinstance(arg, Ref))
    if place.name != "index_value" or limit.name != "constant" or limit.args[0] != count:
        return False
    return bool(body.indices[place.args[0].position] == row)  # type: ignore[union-attr]


def _flows_in_place(members: Sequence[Loops]) -> bool:
    """True if every element that flows is read by the iteration that wrote it."""
    written: dict[str, set[Expr]] = {}
    for member in members:
        facts = summarize(member)
        if any(one.buffer in written and one.index not in written[one.buffer] for one in facts.loads):
            return False
        for access in facts.stores:
            written.setdefault(access.buffer, set()).add(access.index)
    return True


def _adds_up(step: Step, sums: _ColumnSums, knowledge: SizeKnowledge) -> bool:
    """True if the group does nothing with the sums of parts but add them up, and its inner loops serve nothing else."""
    if type(step) is not Group or step.inner_ranges != (sums.parts,) or step.rows_each:
        return False
    return all(_adds_up_parts(member.body, len(step.ranges), sums, knowledge) for member in step.members)


def _adds_up_parts(body: LoopBody, shared: int, sums: _ColumnSums, knowledge: SizeKnowledge) -> bool:
    if len(body.vars) != shared:
        return False  # it runs through the parts itself
    ranges = knowledge.ranges(body.vars, body.ranges)
    changing = {at for at, op in enumerate(body.ops) if op.name == "load" and op.args[0] in sums.names}
    for at in changing:
        index = body.indices[body.ops[at].args[1].position]  # type: ignore[union-attr]
        if not body.reduction_vars or index.coefficient(body.reduction_vars[0]) != sums.columns:
            return False
        low, high = as_expr(index.substitute({body.reduction_vars[0]: 0})).bounds(ranges)
        if low < 0 or high >= sums.columns or body.ops[at].args[2] is not None:
            return False
    for op in body.ops:
        used = {arg.position for arg in op.args if isinstance(arg, Ref)}
        if op.name == "reduce":
            if op.args[0] != "sum" or not used <= changing:
                return False
        elif op.name == "welford" or used & changing:
            return False
    return True


def _over_parts(step: Group, parts: int) -> Group:
    members = [
        replace(member, body=replace(member.body, reduction_ranges=(parts,))) if member.body.reduction_vars else member
        for member in step.members
    ]
    return replace(step, members=tuple(members), inner_ranges=(parts,))
