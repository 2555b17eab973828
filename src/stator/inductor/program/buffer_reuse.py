"""Reuse of dead memory outside of the arena by the next buffer of equal size, instead of freeing and allocating.

Dead memory is mapped already and often still in the processor's cache; fresh memory is neither. Live memory is never
reused, and a dead block is never kept where that raises the peak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from .aliases import layout_bytes, may_alias_arguments
from .arena import plan_arena
from .peak import bytes_alive
from .steps import Allocate, Call, Free, Program, Reuse, ReuseIfUnshared, Step

# The allocator reuses smaller blocks well by itself
_LEAST_BYTES = 1 << 18


def reuse_dead_memory(program: Program, held: Collection[str] = ()) -> Program:
    """Return the program with a `ReuseIfUnshared` for each allocation that finds a dead block of exactly its size.

    Blocks belong to intermediates, results of library calls included, and to inputs in a list, except the inputs in
    `held`, which others hold too. A block is kept until its reuse only where that does not raise the peak.
    """
    alive, _ = bytes_alive(program, held)
    most = max(alive, default=0)
    sizes = _own_blocks(program, held)
    dead: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    steps: list[Step | None] = list(program.steps)
    for at, step in enumerate(program.steps):
        size = sizes.get(step.name, 0) if isinstance(step, (Allocate, Free)) else 0
        if size < _LEAST_BYTES:
            continue
        if isinstance(step, Free):
            dead[size].append((at, step.name))
        elif isinstance(step, Allocate):
            while dead[size]:  # the block that died last is still in the processor's cache
                since, old = dead[size].pop()
                if max(alive[since:at]) + size <= most:
                    steps[since], steps[at] = None, ReuseIfUnshared(step.name, old, step.layout)
                    alive[since:at] = [bytes_ + size for bytes_ in alive[since:at]]
                    break
    return replace(program, steps=tuple(step for step in steps if step is not None))


def _own_blocks(program: Program, held: Collection[str]) -> dict[str, int]:
    """The sizes of the CPU buffers that have memory of their own outside of the arena. Without those of symbolic
    size."""
    placed = {entry.name for entry in plan_arena(program).placed}
    names = [name for name in program.tensor_inputs if program.boxed and name not in held]
    for step in program.steps:
        if isinstance(step, (Allocate, Reuse, ReuseIfUnshared)) and step.name not in placed:
            names.append(step.name)
        elif isinstance(step, Call) and step.extern.style == "returns" and not may_alias_arguments(step.extern):
            names += [name for name in step.extern.outputs if name is not None]
    layouts = {name: program.buffers[name].layout for name in names}
    found = {name: layout_bytes(layout) for name, layout in layouts.items() if layout.device.type == "cpu"}
    return {name: size for name, size in found.items() if isinstance(size, int)}
