"""Reuse of dead memory outside of the arena by the next buffer of equal size, instead of freeing and allocating.

Dead memory is mapped already and often still in the processor's cache; fresh memory is neither. Live memory is never
reused, and a dead block is never kept where that raises the peak. Also the proof, over loop bodies, that a kernel may
write a buffer into the memory of another buffer that it reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from stator.inductor.buffers import Buffer
from stator.inductor.loops.body import IndexRef, LoopBody, Op
from stator.inductor.schedule.groups import Group, TiledGroup
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge

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


def may_overwrite(group: Group, old: Buffer, new: Buffer, sizes: SizeKnowledge = NUMBERS_ONLY) -> bool:
    """True if `new` may take over the memory of `old`, which `group` reads and nothing reads afterwards.

    The proof: the iteration that writes an element also reads it, and reads it first. All accesses to both buffers have
    one common index, over the same parallel loops, and no load of `old` follows a store to `new`. Stores of parallel
    loops never meet, so no other iteration touches that element. The kernel must store nothing else: its pointers are
    declared not to alias, and a compiler may then read `old` again behind a store if it still needs the value.
    """
    if group.writes != (new.name,) or not _same_memory(old, new):
        return False
    if isinstance(group, TiledGroup) and old.name in group.operands:
        return False
    index = loops = None
    stored = False
    for member in group.members:
        body = member.body
        for op in body.ops:
            name = op.args[0] if op.name in ("load", "store") else None
            if name not in (old.name, new.name):
                continue
            at = body.indices[_index_position(op)]
            if index is None:
                index, loops = at, (body.vars, body.ranges)
            if at is not index or loops != (body.vars, body.ranges) or not _plain(body, op, sizes):
                return False
            if op.name == "load" and (stored or name == new.name):
                return False
            stored = stored or op.name == "store"
    return stored


def _same_memory(old: Buffer, new: Buffer) -> bool:
    return (
        old.layout.dtype.itemsize == new.layout.dtype.itemsize
        and old.layout.device == new.layout.device
        and old.layout.offset == new.layout.offset
        and layout_bytes(old.layout) == layout_bytes(new.layout)
    )


def _index_position(op: Op) -> int:
    index = op.args[1]
    assert isinstance(index, IndexRef)
    return index.position


def _plain(body: LoopBody, op: Op, sizes: SizeKnowledge) -> bool:
    """True without reduction loops and accumulating stores, with an index over the parallel loops alone."""
    index = body.indices[_index_position(op)]
    accumulates = op.name == "store" and len(op.args) > 3 and op.args[3] is not None
    return not body.reduction_vars and not accumulates and sizes.loops_in(index) <= set(body.vars)
