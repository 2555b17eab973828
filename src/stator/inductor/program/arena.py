"""Offsets of a program's intermediate buffers in one block of memory, the arena. Never runs anything."""

from __future__ import annotations

from dataclasses import dataclass

from stator.inductor.buffers import Layout

from .aliases import layout_bytes
from .steps import Allocate, Free, Program, Reuse

ALIGNMENT = 64
# Buffers with sizes that are powers of two would all start at the same distance from a page's start. Loads then wait
# for stores to other buffers at the same distance (4K aliasing). Padding keeps the buffers apart.
_PAGE = 4096
_STAGGER = 192


@dataclass(frozen=True, slots=True)
class ArenaSlot:
    """Buffer `name` starts `offset` bytes into the arena."""

    name: str
    offset: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """bytes: the size of the arena. naive_bytes: the bytes that the same buffers need without any sharing."""

    placed: tuple[ArenaSlot, ...]
    bytes: int
    naive_bytes: int


@dataclass(slots=True)
class _Block:
    """One piece of memory and the buffers that live in it, one after the other. Alive in steps [start, end]."""

    names: list[str]
    start: int
    end: int
    bytes: int
    offset: int = 0


def plan_arena(program: Program) -> ArenaLayout:
    """Place the CPU buffers that do not leave the program, the largest first, each at its lowest free offset."""
    blocks = _blocks(program)
    placed: list[_Block] = []
    for block in sorted(blocks, key=lambda block: (-block.bytes, block.start)):
        others = sorted(
            (other for other in placed if other.start <= block.end and block.start <= other.end),
            key=lambda other: other.offset,
        )
        offset = 0
        for other in others:
            if offset + block.bytes <= other.offset:
                break
            offset = max(offset, other.offset + other.bytes)
        block.offset = offset
        placed.append(block)
    layouts = {name: program.buffers[name].layout for block in blocks for name in block.names}
    return ArenaLayout(
        placed=tuple(ArenaSlot(name, block.offset, layouts[name]) for block in blocks for name in block.names),
        bytes=max((block.offset + block.bytes for block in blocks), default=0),
        naive_bytes=sum(_aligned(layout_bytes(layout)) for layout in layouts.values()),
    )


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _padded(count: int) -> int:
    return _aligned(count) + (_STAGGER if count >= _PAGE else 0)


def _blocks(program: Program) -> list[_Block]:
    blocks: list[_Block] = []
    holder: dict[str, _Block] = {}
    for position, step in enumerate(program.steps):
        if isinstance(step, Allocate) and _is_in_arena(step, program):
            block = _Block([step.name], position, len(program.steps), _padded(layout_bytes(step.layout)))
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
    if step.name in program.escaping or step.layout.device.type != "cpu":
        return False
    return program.heap_from is None or layout_bytes(step.layout) < program.heap_from


def size_threshold(program: Program, most: int) -> int:
    """The largest size in bytes such that intermediates smaller than this size never hold more than `most` at once.

    The result is at most the size of the largest intermediate, so that the largest stay outside of the arena.
    """
    blocks = _blocks(program)
    sizes = sorted({layout_bytes(program.buffers[block.names[0]].layout) for block in blocks})
    low, high = 0, len(sizes) - 1  # sizes[low] satisfies the limit
    while low < high:
        middle = (low + high + 1) // 2
        smaller = [b for b in blocks if layout_bytes(program.buffers[b.names[0]].layout) < sizes[middle]]
        if _most_alive(smaller) <= most:
            low = middle
        else:
            high = middle - 1
    return sizes[low]


def _most_alive(blocks: list[_Block]) -> int:
    changes = sorted(
        [(block.start, 1, block.bytes) for block in blocks] + [(block.end + 1, 0, -block.bytes) for block in blocks]
    )
    most = alive = 0
    for _, _, change in changes:
        alive += change
        most = max(most, alive)
    return most
