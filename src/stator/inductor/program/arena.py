"""Offsets of a program's intermediate buffers in one block of memory, the arena. Never runs anything. Where sizes are
symbolic, the offsets are those of the example; the running program places the buffers for the sizes of each call."""

from __future__ import annotations

from dataclasses import dataclass

from stator.inductor.buffers import Layout
from stator.runtime.memory.placement import aligned, padded, place, spacing_on

from .aliases import typical_bytes
from .steps import Allocate, Free, Program, Reuse


@dataclass(frozen=True, slots=True)
class ArenaSlot:
    """Buffer `name` starts `offset` bytes into the arena."""

    name: str
    offset: int
    layout: Layout


@dataclass(slots=True)
class ArenaBlock:
    """One piece of memory and the buffers that live in it, one after the other. Alive in steps [start, end]."""

    names: list[str]
    start: int
    end: int
    layout: Layout
    bytes: int  # in the example


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """bytes: the size of the arena. naive_bytes: the bytes that the same buffers need without any sharing. blocks: the
    pieces of memory behind the slots."""

    placed: tuple[ArenaSlot, ...]
    bytes: int
    naive_bytes: int
    blocks: tuple[ArenaBlock, ...] = ()


def plan_arena(program: Program) -> ArenaLayout:
    """Place the buffers that do not leave the program, the largest first, each at its lowest free offset. Buffers of
    other devices than the arena's are allocated one by one."""
    blocks = _blocks(program)
    offsets, size = place([(block.start, block.end, block.bytes) for block in blocks])
    layouts = {name: program.buffers[name].layout for block in blocks for name in block.names}
    spacing = spacing_on(program.device.type)
    return ArenaLayout(
        placed=tuple(
            ArenaSlot(name, offset, layouts[name])
            for block, offset in zip(blocks, offsets, strict=True)
            for name in block.names
        ),
        bytes=size,
        naive_bytes=sum(aligned(typical_bytes(layout, program.sizes), spacing) for layout in layouts.values()),
        blocks=tuple(blocks),
    )


def _blocks(program: Program) -> list[ArenaBlock]:
    blocks: list[ArenaBlock] = []
    holder: dict[str, ArenaBlock] = {}
    spacing = spacing_on(program.device.type)
    for position, step in enumerate(program.steps):
        if isinstance(step, Allocate) and _is_in_arena(step, program):
            size = padded(typical_bytes(step.layout, program.sizes), spacing)
            block = ArenaBlock([step.name], position, len(program.steps), step.layout, size)
            blocks.append(block)
            holder[step.name] = block
        elif isinstance(step, Reuse) and step.old in holder:
            holder[step.name] = block = holder[step.old]
            block.names.append(step.name)
            block.end = len(program.steps)
        elif isinstance(step, Free) and step.name in holder:
            holder[step.name].end = position
    return blocks


def _is_in_arena(step: Allocate, program: Program) -> bool:
    if step.name in program.escaping or step.layout.device != program.device:
        return False
    return not program.is_on_heap(step.layout)


def size_threshold(program: Program, most: int) -> int:
    """The largest size in bytes such that intermediates smaller than this size never hold more than `most` at once.

    The result is at most the size of the largest intermediate, so that the largest stay outside of the arena.
    """
    blocks = _blocks(program)
    sizes = sorted({typical_bytes(block.layout, program.sizes) for block in blocks})
    low, high = 0, len(sizes) - 1  # sizes[low] satisfies the limit
    while low < high:
        middle = (low + high + 1) // 2
        smaller = [b for b in blocks if typical_bytes(b.layout, program.sizes) < sizes[middle]]
        if _most_alive(smaller) <= most:
            low = middle
        else:
            high = middle - 1
    return sizes[low]


def _most_alive(blocks: list[ArenaBlock]) -> int:
    changes = sorted(
        [(block.start, 1, block.bytes) for block in blocks] + [(block.end + 1, 0, -block.bytes) for block in blocks]
    )
    most = alive = 0
    for _, _, change in changes:
        alive += change
        most = max(most, alive)
    return most
