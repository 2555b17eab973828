"""Schedule to program: when memory is taken, taken over and given back. Sizes and times only; arena.py places it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from stator.base.errors import CompileError, VerificationError
from stator.inductor.buffers import Buffer, Extern, Lowered
from stator.inductor.schedule.groups import Group, Schedule

from .aliases import Memory, buffers_in, layout_bytes, reads_of, writes_of
from .in_place import may_overwrite
from .steps import Allocate, Call, Free, KernelSource, Launch, Program, ReturnValues, Reuse, Step

# A dead buffer is taken over by one of at least half its size: more waste than that is better left to the allocator
_LARGEST_WASTE = 2


def plan(
    lowered: Lowered,
    schedule: Schedule,
    kernels: Mapping[str, KernelSource],
    static_inputs: Iterable[str] = (),
    *,
    reuse: bool = True,
) -> Program:
    """Order allocations, launches, calls and frees. `kernels`: by the name of the group.

    Memory is taken just before its first writer and given back just after its last reader. What the caller receives is
    always fresh memory; inputs and constants are never taken over. Identical kernels appear once, under their symbol.
    Raises CompileError when a C++ kernel would have to work on another device's memory.
    """
    planner = _Planner(lowered, schedule, reuse)
    used: dict[str, KernelSource] = {}
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Group):
            kernel = kernels.get(step.name)
            if kernel is None:
                raise VerificationError(f"there is no kernel for group {step.name}")
            _check_devices(step, kernel, lowered.buffers)
            known = used.setdefault(kernel.symbol, kernel)
            if known.source != kernel.source:
                raise VerificationError(f"two different kernels are both called {kernel.symbol}")
            planner.launch(position, step, kernel.symbol)
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
        static_inputs=frozenset(static_inputs),
        escaping=frozenset(planner.returned - planner.given),
    )


def _check_devices(group: Group, kernel: KernelSource, buffers: Mapping[str, Buffer]) -> None:
    """C++ kernels must never be handed addresses of another device's memory."""
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
    """Walks the schedule once, keeping what is alive and what is dead and free to be taken over."""

    def __init__(self, lowered: Lowered, schedule: Schedule, reuse: bool) -> None:
        self.buffers = lowered.buffers
        self.memory = Memory(lowered.buffers, schedule.steps)
        self.reuse = reuse
        self.steps: list[Step] = []
        self.given = {name for name, buffer in lowered.buffers.items() if buffer.kind != "computed"}
        outputs = buffers_in(lowered.outputs, lowered.buffers)
        self.returned = {root for name in outputs for root in self.memory.roots(name)}
        self.last_use = _last_uses(schedule, lowered.buffers, self.memory)
        self.dying: defaultdict[int, list[str]] = defaultdict(list)
        for name, position in self.last_use.items():
            writes_an_input = isinstance(self.buffers[name].value, str)
            if name not in self.given and name not in self.returned and not writes_an_input:
                self.dying[position].append(name)
        self.allocated: set[str] = set()  # by Allocate or Reuse, in contrast to what calls return
        self.dead: dict[str, int] = {}  # free to be taken over: name -> bytes of the whole block
        self.block_bytes: dict[str, int] = {}

    def launch(self, position: int, group: Group, symbol: str) -> None:
        in_place = self._overwritten_by(position, group) if self.reuse else {}
        for name in group.writes:
            self._allocate(name, in_place.get(name))
        self.steps.append(Launch(symbol, (*group.reads, *group.writes)))
        self._bury(position, kept=set(in_place.values()))

    def call(self, position: int, extern: Extern) -> None:
        if extern.style == "out":
            for name in extern.outputs:
                if name is not None:
                    self._allocate(name, None)
        self.steps.append(Call(extern))
        self._bury(position, kept=set())

    def _overwritten_by(self, position: int, group: Group) -> dict[str, str]:
        """For each write that may sit in the memory of a read that dies here: that read."""
        chosen: dict[str, str] = {}
        dying = [name for name in self.dying[position] if name in self.allocated and name in group.reads]
        for new in group.writes:
            if not self._needs_memory(new) or new in self.returned:
                continue
            for old in dying:
                if old not in chosen.values() and may_overwrite(group, self.buffers[old], self.buffers[new]):
                    chosen[new] = old
                    break
        return chosen

    def _needs_memory(self, name: str) -> bool:
        return name not in self.allocated and name not in self.given and self.memory.is_own(name)

    def _allocate(self, name: str, in_place_of: str | None) -> None:
        if not self._needs_memory(name):
            return  # it changes an input, or was allocated by an earlier writer
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
        if not self.reuse or name in self.returned:
            return None
        need = layout_bytes(self.buffers[name].layout)
        device = self.buffers[name].layout.device
        fitting = [
            (bytes_, -order, old)
            for order, (old, bytes_) in enumerate(self.dead.items())
            if need <= bytes_ <= _LARGEST_WASTE * need and self.buffers[old].layout.device == device
        ]
        # the smallest, and of those the one that died last: it is still in the processor's cache
        return min(fitting)[2] if fitting else None

    def _bury(self, position: int, kept: set[str]) -> None:
        for name in self.dying[position]:
            if name in kept:
                continue
            if name in self.allocated:
                self.dead[name] = self.block_bytes[name]
            self.steps.append(Free(name))


def _last_uses(schedule: Schedule, buffers: Mapping[str, Buffer], memory: Memory) -> dict[str, int]:
    last: dict[str, int] = {}
    for position, step in enumerate(schedule.steps):
        for name in (*reads_of(step, buffers), *writes_of(step)):
            last[name] = position
            for root in memory.roots(name):
                last[root] = position
    return last
