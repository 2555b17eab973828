"""Reorders steps to lower the peak of memory: moves the steps that cause the peak, one by one.

Most of these steps compute gradients of weights. No later step reads such a gradient. Where it is larger than its
operands, computing it later lowers the peak, up to the end of the program, where all gradients exist. The scratch
memory of a library call is roughly known for gradients of convolutions only (`scratch_bytes`). Scratch memory is
counted once no other move lowers the peak.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from stator.graph.ir.schema import has_effects
from stator.inductor.buffers import Buffer, Extern, Layout, Lowered, View
from stator.inductor.schedule.accesses import symbols_needed
from stator.inductor.schedule.groups import Combination, Group, Schedule
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge, ceil_div, product
from stator.prims.layout import contiguous_strides
from stator.prims.operators.checks import require_sizes

from .aliases import AliasAnalysis, buffers_in, layout_bytes, reads_of, typical_bytes, writes_of

# A move must save this share of the bytes of inputs and results; a smaller gain is not worth another order
_LEAST_SHARE = 0.0005
_MOST_MOVES = 100
# A step is moved to the first place where at most this share of the peak is alive, lest it has to be moved soon again
_ROOMY = 0.8
_LOOK_AHEAD = 16  # steps behind the peak that may be moved before it
_TRIALS = 4


def order_for_memory(lowered: Lowered, schedule: Schedule, freed: Iterable[str] = ()) -> Schedule:
    """Reorder the steps so that the peak of memory falls or stays. freed: inputs that die when used."""
    order = _Order(lowered, schedule, frozenset(freed))
    moves = 0
    for scratch in (False, True):
        if scratch and not order.count_scratch():
            break
        while moves < _MOST_MOVES and order.improve():
            moves += 1
    return Schedule(tuple(schedule.steps[step] for step in order.steps)) if order.changed else schedule


class _Order:
    """An order of the schedule's steps, which are named by their first positions, and the live bytes at each step.

    taken: bytes of the memory that a step is the first to write to. users: the steps that touch a piece of memory.
    scratch: bytes that exist while a step runs, unknown at first. alive: bytes before the step at each place, and at
    the end. most: bytes while the step at each place runs.
    """

    def __init__(self, lowered: Lowered, schedule: Schedule, freed: frozenset[str]) -> None:
        count = len(schedule.steps)
        self.steps = list(range(count))
        self.place = list(range(count))
        self.changed = False
        memory = AliasAnalysis(lowered.buffers, schedule.steps)
        knowledge = self.knowledge = lowered.sizes
        self.sizes = {name: typical_bytes(buffer.layout, knowledge) for name, buffer in lowered.buffers.items()}
        computed = {
            name for name, buffer in lowered.buffers.items() if buffer.kind == "computed" and memory.is_own(name)
        }
        returned = {root for name in buffers_in(lowered.outputs, lowered.buffers) for root in memory.roots(name)}
        self.mortal = (computed | freed) - returned
        self.least = max(
            1, int(_LEAST_SHARE * sum(self.sizes[name] for name in {*lowered.inputs, *returned} & self.sizes.keys()))
        )
        self.reads = [_roots(memory, reads_of(step, lowered.buffers)) for step in schedule.steps]
        self.writes = [_roots(memory, writes_of(step)) for step in schedule.steps]
        order_by_sizes(schedule.steps, lowered.buffers, self.reads, self.writes)
        self.users: dict[str, list[int]] = {}
        self.writers: dict[str, list[int]] = {}
        self.taken = [0] * count
        self.scratch = [0] * count
        self.buffers, self.all_steps = lowered.buffers, schedule.steps
        self.dying: list[set[str]] = [set() for _ in range(count)]
        for step in range(count):
            for name in self.writes[step]:
                if name in computed and name not in self.users:
                    self.taken[step] += self.sizes[name]
                self.writers.setdefault(name, []).append(step)
            for name in self.reads[step] | self.writes[step]:
                self.users.setdefault(name, []).append(step)
        for name in self.users.keys() & self.mortal:
            self.dying[self._last_user(name)].add(name)
        self.overwrites = [
            isinstance(s, Group) and len(w) == 1 for s, w in zip(schedule.steps, self.writes, strict=True)
        ]
        self.fixed = [isinstance(step, Extern) and _has_effects(step) for step in schedule.steps]
        self.large = [step for step in range(count) if self.taken[step] >= self.least and not self.fixed[step]]
        inputs = sum(self.sizes[name] for name in freed & self.users.keys())
        self.alive, self.most = self._walk(self.steps, inputs)

    def count_scratch(self) -> bool:
        """Count the scratch memory of library calls. False if that does not change the peak."""
        self.scratch = [scratch_bytes(step, self.buffers, self.knowledge) for step in self.all_steps]
        if not any(self.scratch):
            return False
        before, (self.alive, self.most) = max(self.most), self._walk(self.steps, self.alive[0])
        return max(self.most) > before

    def improve(self) -> bool:
        """Make one move that lowers the peak. False if there is none."""
        if not self.most:
            return False
        peak = max(self.most)
        at = self.most.index(peak)
        moves = [move for move in (*self._delays(at), *self._advances(at)) if move[0] >= self.least]
        moves.sort(key=lambda move: (-move[0], move[1]))
        return any(self._try(step, target, peak - self.least) for _, step, target in moves[:_TRIALS])

    # ---- moves: (bytes saved at the peak, step, the place it goes to) ----------------------------------------------

    def _delays(self, at: int) -> Iterator[tuple[int, int, int]]:
        """Steps up to the peak whose results are first used behind the peak, and a later place with room for them."""
        peak = max(self.most)
        for step in self.large:
            if self.place[step] > at:
                continue
            places = range(max(at, self.place[step] + 1), self._needed_at(step))
            if not places:
                continue
            last_touches = self._last_touches(step)
            needed = [self.alive[place + 1] + _bytes_kept(last_touches, place) for place in places]
            target = next((at for at, bytes_ in enumerate(needed) if bytes_ <= _ROOMY * peak), None)
            if target is None:
                target = min(range(len(needed)), key=needed.__getitem__)
            if needed[target] <= peak - self.least:
                yield self.taken[step] - _bytes_kept(last_touches, at - 1), step, places[target]

    def _last_touches(self, step: int) -> list[tuple[int, int]]:
        """For all memory that a step reads: the last place where another step touches it (or -1), and its bytes."""
        others = {
            name: [self.place[u] for u in self.users[name] if u != step] for name in self.reads[step] & self.mortal
        }
        return [(max(places, default=-1), self.sizes[name]) for name, places in others.items()]

    def _needed_at(self, step: int) -> int:
        """The first place behind a step with a step that must stay behind it."""
        users = [user for name in self.writes[step] for user in self.users[name]]
        users += [writer for name in self.reads[step] for writer in self.writers.get(name, ())]
        behind = [self.place[user] for user in users if self.place[user] > self.place[step]]
        return min(behind, default=len(self.steps))

    def _advances(self, at: int) -> Iterator[tuple[int, int, int]]:
        """Steps behind the peak that free more than they take, and can run before the peak."""
        for place in range(at + 1, min(at + 1 + _LOOK_AHEAD, len(self.steps))):
            step = self.steps[place]
            if not self.dying[step] or self.fixed[step]:
                continue
            if any(self._written_between(name, at - 1, place - 1) for name in self.reads[step]):
                continue
            if any(self._used_between(name, at - 1, place - 1) for name in self.writes[step]):
                continue
            yield _bytes_kept(self._last_touches(step), at - 1) - self.taken[step], step, at

    def _used_between(self, name: str, after: int, up_to: int) -> bool:
        return any(after < self.place[user] <= up_to for user in self.users[name])

    def _written_between(self, name: str, after: int, up_to: int) -> bool:
        return any(after < self.place[writer] <= up_to for writer in self.writers.get(name, ()))

    def _last_user(self, name: str) -> int:
        """The step that touches the memory last."""
        return max(self.users[name], key=self.place.__getitem__)

    def _try(self, step: int, target: int, most: int) -> bool:
        """Move a step if all affected places then need at most `most` bytes."""
        source = self.place[step]
        first, last = min(source, target), max(source, target)
        self._move(step, target)
        alive, needed = self._walk(self.steps[first : last + 1], self.alive[first])
        if max(needed) > most:
            self._move(step, source)
            return False
        self.alive[first : last + 2], self.most[first : last + 1] = alive, needed
        self.changed = True
        return True

    def _move(self, step: int, target: int) -> None:
        source = self.place[step]
        touched = (self.reads[step] | self.writes[step]) & self.mortal
        for name in touched:
            self.dying[self._last_user(name)].discard(name)
        del self.steps[source]
        self.steps.insert(target, step)
        for place in range(min(source, target), max(source, target) + 1):
            self.place[self.steps[place]] = place
        for name in touched:
            self.dying[self._last_user(name)].add(name)

    # ---- live bytes -------------------------------------------------------------------------------------------------

    def _walk(self, steps: Collection[int], alive: int) -> tuple[list[int], list[int]]:
        """The bytes before each of several consecutive steps and behind the last, and the bytes during each."""
        changes = [self._change(step) for step in steps]
        between = list(accumulate((taken - gone for taken, gone in changes), initial=alive))
        during = [taken + self.scratch[step] for step, (taken, _) in zip(steps, changes, strict=True)]
        return between, [now + more for now, more in zip(between, during, strict=False)]

    def _change(self, step: int) -> tuple[int, int]:
        """The bytes that a step takes before it runs, and gives back after."""
        taken, dying = self.taken[step], self.dying[step]
        gone = sum(map(self.sizes.__getitem__, dying))
        same = any(self.sizes[name] == taken for name in dying & self.reads[step])
        if same and self.overwrites[step]:  # such a kernel is likely to write where it reads
            return 0, gone - taken
        return taken, gone


_CHECKED = "what is known about sizes"


def order_by_sizes(
    steps: Sequence[Group | Combination | Extern],
    buffers: Mapping[str, Buffer],
    reads: list[frozenset[str]],
    writes: list[frozenset[str]],
) -> None:
    """Let calls that tell sizes write to names of these sizes, which steps with such sizes read. All steps behind a
    check of sizes rely on it."""
    told = {symbol for step in steps if isinstance(step, Extern) for symbol, _ in step.binds}
    if not told:
        return
    checked = False
    for at, step in enumerate(steps):
        members: Sequence[Any] = step.members if isinstance(step, Group) else (step,)
        needed = {f"size {symbol}" for one in members for symbol in symbols_needed(one, buffers) & told}
        if checked:
            needed.add(_CHECKED)
        reads[at] |= needed
        if isinstance(step, Extern):
            writes[at] |= {f"size {symbol}" for symbol, _ in step.binds}
            if step.target is require_sizes:
                writes[at] |= {_CHECKED}
                checked = True


_LANES = 16  # channels in a block of oneDNN's layouts


def scratch_bytes(
    step: Group | Combination | Extern, buffers: Mapping[str, Buffer], sizes: SizeKnowledge = NUMBERS_ONLY
) -> int:
    """A rough count of the bytes that a library allocates for itself during a call. Known only for gradients of
    convolutions of contiguous images by kernels of more than one element: copies in oneDNN's layouts."""
    if not isinstance(step, Extern) or step.target is not torch.ops.aten.convolution_backward.default:
        return 0
    layouts = [part.layout if isinstance(part, View) else buffers[part].layout for part in step.args[:3]]
    weight = layouts[2].size
    if layouts[1].stride != contiguous_strides(layouts[1].size) or product(weight[2:]) == 1:
        return 0
    return sizes.hint(sum(_in_blocks(layout) for layout in layouts[:2]) + layout_bytes(layouts[2]))


def _in_blocks(images: Layout) -> Any:
    batch, channels, *positions = images.size
    return batch * ceil_div(channels, _LANES) * _LANES * product(positions) * images.dtype.itemsize


def _bytes_kept(last_touches: Iterable[tuple[int, int]], place: int) -> int:
    """Bytes that are dead behind a place and would stay alive if the step came after the place."""
    return sum(size for last, size in last_touches if last <= place)


def _roots(memory: AliasAnalysis, names: Iterable[str]) -> frozenset[str]:
    return frozenset(root for name in names for root in memory.roots(name))


def _has_effects(step: Extern) -> bool:
    """True if the order of two such calls can be observed: they draw random numbers, communicate, or may raise."""
    return has_effects(step.target, step.args, step.kwargs) or step.style == "mutates"
