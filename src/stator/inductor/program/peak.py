"""How much memory a program will need: the bytes alive at each step, by the plan alone. Never runs anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from .aliases import layout_bytes
from .arena import lay_out
from .steps import Allocate, Call, Free, Program, Reuse


@dataclass(frozen=True, slots=True)
class Peak:
    """bytes: alive at one time at most, the arena included. arena: bytes of that alone."""

    bytes: int
    arena: int


def predict_peak(program: Program, held: Collection[str] = ()) -> Peak:
    """What a call needs at its peak, beside what its caller holds anyway.

    The arena counts whole. Inputs count only when they come in a list and are freed here (`Program.boxed`), except
    those in `held`. Scratch memory inside of library calls is not known.
    """
    arena = lay_out(program).bytes
    return Peak(arena + max((sum(alive.values()) for alive in _walk(program, held)), default=0), arena)


def _walk(program: Program, held: Collection[str]) -> Iterator[dict[str, int]]:
    """What is alive outside of the arena after each step that takes memory: bytes by buffer."""
    sizes = {name: layout_bytes(buffer.layout) for name, buffer in program.buffers.items()}
    placed = {entry.name for entry in lay_out(program).placed}
    alive = {name: sizes[name] for name in program.inputs if program.boxed and name not in held}
    yield alive
    for step in program.steps:
        if isinstance(step, Allocate) and step.name not in placed:
            alive[step.name] = sizes[step.name]
        elif isinstance(step, Reuse) and step.old in alive:
            alive[step.name] = alive.pop(step.old)
        elif isinstance(step, Call) and step.extern.style == "returns":
            alive |= {name: sizes[name] for name in step.extern.outputs if name is not None}
        elif isinstance(step, Free):
            alive.pop(step.name, None)
            continue
        yield alive
