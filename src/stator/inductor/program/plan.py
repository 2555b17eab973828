"""Turns a schedule into a program: when memory is allocated, reused and freed. arena.py decides the addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch

from stator.base.errors import CompileError, VerificationError
from stator.inductor.buffers import Buffer, Extern, Lowered
from stator.inductor.schedule.groups import Combination, Group, Schedule
from stator.prims.devices import CPU
from stator.shapes.expr import ExprLike

from .aliases import AliasAnalysis, buffers_in, layout_bytes, reads_of, typical_bytes, writes_of
from .arena import plan_arena, size_threshold
from .buffer_reuse import may_overwrite
from .peak import predict_peak
from .steps import Allocate, Call, Free, KernelSource, Launch, Program, ReturnValues, Reuse, Step

# Bytes that the arena may always have, even where `arena_share` limits it
_LEAST_ARENA = 1 << 18
# Work on inputs and results of this many bytes takes so long that allocating every intermediate costs nothing beside it
_NO_ARENA_FROM = 64 << 20
# Memory beyond what inputs, results and live intermediates need, as a share of them
_VISIBLE_RISE = 0.05
# A dead buffer is reused by a buffer of at least half its size; more waste than that is better left to the allocator
_LARGEST_WASTE = 2


def plan(
    lowered: Lowered,
    schedule: Schedule,
    kernels: Mapping[str, KernelSource],
    static_inputs: Iterable[str] = (),
    *,
    reuse: bool = True,
    boxed: bool = False,
    arena_share: float | None = None,
) -> Program:
    """Order allocations, launches, calls and frees. `kernels` maps the name of a group to its kernel.

    Memory is allocated just before its first writer and freed just after its last reader. Results always have memory
    of their own: fresh, or that of an intermediate outside of the arena. The memory of inputs and constants is never
    reused here. Identical kernels appear once, under their symbol.

    boxed: inputs come in one list and are freed after their last use, unless they are returned. arena_share: the
    largest size of the arena as a share of inputs and results (None: no limit). Larger intermediates are then allocated
    and freed one by one; where inputs and results are large, all intermediates are. The limit serves programs during
    which much else is alive, because the arena has its full size all the time. On GPUs, whose allocator keeps memory
    ready, programs have the limit without being asked where the full arena makes them need visibly more memory.

    Raises CompileError when a C++ kernel would work on the memory of another device.
    """
    parts = (lowered, schedule, kernels, frozenset(static_inputs))
    program = _plan(*parts, reuse, boxed, None)
    if arena_share is None and program.device == CPU:
        return program
    names = {*program.tensor_inputs, *program.escaping}
    others = sum(typical_bytes(lowered.buffers[name].layout, lowered.sizes) for name in names)
    if arena_share is None:
        least = predict_peak(_plan(*parts, reuse, boxed, 0)).bytes
        most = max(_LEAST_ARENA, int(_VISIBLE_RISE * (others + least)))
        fits = predict_peak(program).bytes <= least + most
    elif others >= _NO_ARENA_FROM:
        return _plan(*parts, reuse, boxed, 0)
    else:
        most = max(_LEAST_ARENA, int(arena_share * others))
        fits = plan_arena(program).bytes <= most
    return program if fits else _plan(*parts, reuse, boxed, size_threshold(program, most))


def _plan(
    lowered: Lowered,
    schedule: Schedule,
    kernels: Mapping[str, KernelSource],
    static_inputs: frozenset[str],
    reuse: bool,
    boxed: bool,
    heap_from: int | None,
) -> Program:
    planner = _Planner(lowered, schedule, reuse, boxed, heap_from)
    used: dict[str, KernelSource] = {}
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Group | Combination):
            kernel = kernels.get(step.name)
            if kernel is None:
                raise VerificationError(f"there is no kernel for group {step.name}")
            _check_devices(step, kernel, lowered.buffers)
            known = used.setdefault(kernel.symbol, kernel)
            if known.source != kernel.source:
                raise VerificationError(f"two different kernels are both called {kernel.symbol}")
            planner.launch(position, step, kernel)
        else:
            planner.call(position, step)
    planner.steps.append(ReturnValues(tuple(lowered.outputs)))
    taken_over = {step.old for step in planner.steps if isinstance(step, Reuse)}
    steps = [step for step in planner.steps if not (isinstance(step, Free) and step.name in taken_over)]
    return Program(
        inputs=tuple(lowered.inputs),
        buffers=lowered.buffers,
        kernels=used,
        steps=tuple(steps),
        static_inputs=static_inputs,
        escaping=frozenset(planner.returned - planner.given),
        device=planner.device,
        boxed=boxed,
        heap_from=heap_from,
        sizes=lowered.sizes,
        size_bindings=lowered.size_bindings,
    )


def _check_devices(group: Group | Combination, kernel: KernelSource, buffers: Mapping[str, Buffer]) -> None:
    """C++ kernels must never receive addresses of another device's memory."""
    for name in (*group.reads, *group.writes):
        device = buffers[name].layout.device
        if kernel.language == "cpp" and device.type != "cpu":
            origins = ", ".join(origin for member in group.members for origin in member.origins)
            raise CompileError(
                "inductor",
                f"kernels for device {device} are not generated yet ({name}, computed by {origins or group.name})",
                hint="move the module and its inputs to the CPU, or run this part eagerly (stator.disable)",
            )


class _Planner:
    """Walks the schedule once. Keeps the live buffers and the dead ones whose memory is free for reuse."""

    def __init__(self, lowered: Lowered, schedule: Schedule, reuse: bool, boxed: bool, heap_from: int | None) -> None:
        self.buffers = lowered.buffers
        self.sizes = lowered.sizes
        self.memory = AliasAnalysis(lowered.buffers, schedule.steps)
        self.reuse = reuse
        self.heap_from = heap_from
        self.steps: list[Step] = []
        self.device = _main_device(lowered.buffers)
        self.given = {name for name, buffer in lowered.buffers.items() if buffer.kind != "computed"}
        outputs = buffers_in(lowered.outputs, lowered.buffers)
        self.returned = {root for name in outputs for root in self.memory.roots(name)}
        self.last_use = _last_uses(schedule, lowered.buffers, self.memory)
        self.dying: defaultdict[int, list[str]] = defaultdict(list)
        for name, position in self.last_use.items():
            writes_an_input = isinstance(self.buffers[name].value, str)
            ours = name not in self.given or (boxed and self.buffers[name].kind == "input")
            if ours and name not in self.returned and not writes_an_input:
                self.dying[position].append(name)
        if boxed:
            used = self.last_use.keys() | self.returned
            unread = [name for name in lowered.inputs if name in self.buffers and name not in used]
            self.steps += [Free(name) for name in unread]
        self.allocated: set[str] = set()  # by Allocate or Reuse
        self.made: set[str] = set()  # results of library calls
        self.dead: dict[str, ExprLike] = {}  # free for reuse: name -> bytes of the whole block
        self.block_bytes: dict[str, ExprLike] = {}

    def launch(self, position: int, group: Group | Combination, kernel: KernelSource) -> None:
        in_place = self._overwritten_by(position, group) if self.reuse and isinstance(group, Group) else {}
        for name in group.writes:
            self._allocate(name, in_place.get(name))
        self.steps.append(Launch(kernel.symbol, (*group.reads, *group.writes), kernel.sizes))
        self._free_dead(position, kept=set(in_place.values()))

    def call(self, position: int, extern: Extern) -> None:
        if extern.style == "out":
            for name in extern.outputs:
                if name is not None:
                    self._allocate(name, None)
        elif extern.style == "returns":
            self.made.update(name for name in extern.outputs if name is not None)
        self.steps.append(Call(extern))
        self._free_dead(position, kept=set())

    def _overwritten_by(self, position: int, group: Group) -> dict[str, str]:
        """Maps each write that may reuse the memory of a read that dies here to that read."""
        chosen: dict[str, str] = {}
        dying = [name for name in self.dying[position] if name in self.allocated and name in group.reads]
        for new in group.writes:
            if not self._needs_memory(new):
                continue
            for old in dying:
                if old in chosen.values() or (new in self.returned and not self._may_be_returned(old, new)):
                    continue
                if may_overwrite(group, self.buffers[old], self.buffers[new], self.sizes):
                    chosen[new] = old
                    break
        return chosen

    def _may_be_returned(self, old: str, new: str) -> bool:
        """True if the memory of an intermediate can become a result's: it was allocated for this call, and fits."""
        return self._on_heap(self.block_bytes[old]) and self.buffers[old].layout == self.buffers[new].layout

    def _needs_memory(self, name: str) -> bool:
        exists = name in self.allocated or name in self.made or name in self.given
        return not exists and self.memory.is_own(name)

    def _allocate(self, name: str, in_place_of: str | None) -> None:
        if not self._needs_memory(name):
            return  # it changes an input, or an earlier writer has its memory
        layout = self.buffers[name].layout
        old = in_place_of or self._best_fit(name)
        if old is None:
            self.steps.append(Allocate(name, layout))
            self.block_bytes[name] = layout_bytes(layout)
        else:
            self.steps.append(Reuse(name, old, layout))
            self.block_bytes[name] = self.block_bytes[old]
            self.dead.pop(old, None)
        self.allocated.add(name)

    def _best_fit(self, name: str) -> str | None:
        layout = self.buffers[name].layout
        need, device = layout_bytes(layout), layout.device
        if not self.reuse or name in self.returned or self._on_heap(need, *layout.size) or device != self.device:
            return None
        least = self.sizes.hint(need)
        most = _LARGEST_WASTE * least
        fitting = [
            (size, -order, old)
            for order, (old, bytes_) in enumerate(self.dead.items())
            if least <= (size := self.sizes.hint(bytes_)) <= most
            and self.buffers[old].layout.device == device
            and self.sizes.known("<=", need, bytes_)
        ]
        # the smallest; among equals the buffer that died last, which is still in the processor's cache
        return min(fitting)[2] if fitting else None

    def _on_heap(self, size: ExprLike, *shape: ExprLike) -> bool:
        """As `Program.is_on_heap`."""
        return self.sizes.is_unknown(size, *shape) or (
            self.heap_from is not None and self.sizes.hint(size) >= self.heap_from
        )

    def _free_dead(self, position: int, kept: set[str]) -> None:
        for name in self.dying[position]:
            if name in kept:
                continue
            if name in self.allocated and not self._on_heap(self.block_bytes[name], *self.buffers[name].layout.size):
                self.dead[name] = self.block_bytes[name]
            self.steps.append(Free(name))


def _main_device(buffers: Mapping[str, Buffer]) -> torch.device:
    """The first device of computed buffers that is not the CPU, if there is one."""
    devices = [buffer.layout.device for buffer in buffers.values() if buffer.kind == "computed"]
    return next((device for device in devices if device != CPU), CPU)


def _last_uses(schedule: Schedule, buffers: Mapping[str, Buffer], memory: AliasAnalysis) -> dict[str, int]:
    last: dict[str, int] = {}
    for position, step in enumerate(schedule.steps):
        for name in (*reads_of(step, buffers), *writes_of(step)):
            last[name] = position
            for root in memory.roots(name):
                last[root] = position
    return last
