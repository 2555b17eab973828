"""Pages of dead blocks that go under large new ones for which no dead block has exactly the size: after
buffer_reuse.py.

Nothing here decides what is allocated. Frees are put off only where that leaves the peak as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from .buffer_reuse import LEAST_BYTES, own_blocks
from .peak import bytes_alive
from .steps import Allocate, Free, MovePages, Program, Step

# What is smaller finds a hole anywhere
_LEAST_WANTED = 1 << 20


def hand_over_pages(program: Program, held: Collection[str] = (), most: int = 1 << 62) -> Program:
    """The program in which dead blocks are kept until something large is allocated, which gets their pages if the
    memory that it is given has none.

    First come results: they live on, and what they do not reuse now is still there at the peak. Intermediates get what
    is left. held: inputs that others have. most: blocks of so many bytes get pages of their own, and give them back.
    """
    intermediates = {name for name in program.buffers if name not in program.escaping}
    return _hand_over(_hand_over(program, held, most, program.escaping), held, most, intermediates)


def _hand_over(program: Program, held: Collection[str], most: int, wanted: Collection[str]) -> Program:
    alive, _ = bytes_alive(program, held)
    peak = max(alive, default=0)
    used = {step.old for step in program.steps if isinstance(step, MovePages)}
    blocks = own_blocks(program, held).items()
    sizes = {name: size for name, size in blocks if LEAST_BYTES <= size < most and name not in used}
    dead: dict[str, int] = {}  # where each was freed, or is now
    left: dict[str, int] = {}  # bytes of which nobody was given the pages yet
    moves: defaultdict[int, list[MovePages]] = defaultdict(list)
    for at, step in enumerate(program.steps):
        if isinstance(step, Free) and step.name in sizes:
            dead[step.name], left[step.name] = at, sizes[step.name]
        elif isinstance(step, Allocate) and step.name in wanted:
            start, size = 0, sizes.get(step.name, 0)
            if size < _LEAST_WANTED:
                continue
            for old in reversed(tuple(left)):  # those that died last are kept for the shortest time
                count = min(left[old], size - start)
                if count < LEAST_BYTES:
                    break
                since, whole = dead[old], sizes[old]
                if max(alive[since : at + 1]) + whole > peak:
                    continue
                moves[at].append(MovePages(step.name, start, old, whole - left[old], count))
                alive[since : at + 1] = [bytes_ + whole for bytes_ in alive[since : at + 1]]
                start += count
                dead[old], left[old] = at + 1, left[old] - count
                if left[old] < LEAST_BYTES:
                    del left[old]
    return _with_moves(program, moves)


def _with_moves(program: Program, moves: dict[int, list[MovePages]]) -> Program:
    """The moves go behind the steps at these places; each block is freed behind the last one from it."""
    last = {move.old: at for at, found in moves.items() for move in found}
    frees: defaultdict[int, list[Free]] = defaultdict(list)
    for old, at in last.items():
        frees[at].append(Free(old))
    steps: list[Step] = []
    for at, step in enumerate(program.steps):
        if not (isinstance(step, Free) and step.name in last):
            steps += [step, *moves.get(at, ()), *frees.get(at, ())]
    return replace(program, steps=tuple(steps))
