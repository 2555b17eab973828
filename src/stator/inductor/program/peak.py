"""Predicts the memory of a program: the live bytes at each step, by the plan alone. Never runs anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch

from stator.inductor.buffers import Extern
from stator.inductor.schedule.accesses import extern_reads, extern_writes

from .aliases import typical_bytes
from .arena import plan_arena
from .steps import Allocate, Call, Free, Program, Reuse, ReuseIfUnshared

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Peak:
    """bytes: the most bytes alive at one time, the arena included. arena: the bytes of the arena alone. Both are those
    of the example where sizes are symbolic."""

    bytes: int
    arena: int


def predict_peak(program: Program, held: Collection[str] = (), smallest: int = 0) -> Peak:
    """The bytes that a call needs at its peak, beyond the memory that its caller holds anyway.

    The arena counts whole. Inputs count only when they come in a list and are freed here (`Program.boxed`), except
    the inputs in `held`. The scratch memory of library calls is unknown and not counted, nor are buffers outside of the
    arena with fewer than `smallest` bytes.
    """
    alive, arena = bytes_alive(program, held, smallest)
    return Peak(arena + max(alive, default=0), arena)


def predict_growth(program: Program, held: Collection[str] = (), smallest: int = 0) -> int:
    """The bytes that a call needs at its peak beyond those of the inputs that it frees. See `predict_peak`."""
    sizes = [typical_bytes(program.buffers[name].layout, program.sizes) for name in _freed_inputs(program, held)]
    return max(predict_peak(program, held, smallest).bytes - sum(size for size in sizes if size >= smallest), 0)


def _freed_inputs(program: Program, held: Collection[str]) -> list[str]:
    return [name for name in program.tensor_inputs if program.boxed and name not in held]


def bytes_alive(program: Program, held: Collection[str] = (), smallest: int = 0) -> tuple[list[int], int]:
    """The bytes outside of the arena while each step runs (after it, for a Free), and the bytes of the arena. See
    `predict_peak`."""
    sizes = {name: typical_bytes(buffer.layout, program.sizes) for name, buffer in program.buffers.items()}
    sizes = {name: size if size >= smallest else 0 for name, size in sizes.items()}
    arena = plan_arena(program)
    placed = {entry.name for entry in arena.placed}
    alive = {name: sizes[name] for name in _freed_inputs(program, held)}
    total = sum(alive.values())
    found = []
    for step in program.steps:
        taken: Iterable[str] = ()
        if isinstance(step, Allocate) and step.name not in placed:
            taken = (step.name,)
        elif isinstance(step, Reuse) and step.old in alive:
            total -= alive.pop(step.old)
            taken = (step.name,)
        elif isinstance(step, ReuseIfUnshared):
            total -= alive.pop(step.old, 0)
            taken = (step.name,)
        elif isinstance(step, Call) and step.extern.style == "returns":
            taken = [name for name in step.extern.outputs if name is not None]
        elif isinstance(step, Free):
            total -= alive.pop(step.name, 0)
        for name in taken:
            alive[name] = sizes[name]
            total += sizes[name]
        found.append(total)
    return found, arena.bytes


def scratch_bytes(program: Program) -> int:
    """The most bytes that a library call of the program works in, as far as programs tell.

    cuDNN converts what a convolution of groups reads and writes into a layout of its own, so that the call works in as
    many bytes again. What other calls work in is unknown, and mostly small."""
    calls = [step.extern for step in program.steps if isinstance(step, Call) and _has_groups(step.extern)]
    return max((_touched_bytes(call, program) for call in calls), default=0)


def _has_groups(call: Extern) -> bool:
    if call.target is aten.convolution.default:
        return bool(call.args[8] > 1)
    return call.target is aten.convolution_backward.default and bool(call.args[9] > 1)


def _touched_bytes(call: Extern, program: Program) -> int:
    names = (extern_reads(call) | extern_writes(call)) & program.buffers.keys()
    return sum(typical_bytes(program.buffers[name].layout, program.sizes) for name in names)
