"""Divides a kernel's iterations into Triton programs and blocks, by a cost model. Prints nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stator.inductor.codegen.cpp.kernel import Kernel

_BLOCK = 1024  # elements of a block: a few for each thread of four warps
_LARGEST_PERSISTENT = 2048  # a row up to this length stays in registers


@dataclass(frozen=True, slots=True)
class Blocks:
    """x: the shared loops, flattened; r: the inner loops, flattened (one iteration without inner loops).

    persistent: a whole row is one block, so that every inner value is computed once.
    """

    x_size: int
    r_size: int
    x_block: int
    r_block: int
    persistent: bool
    warps: int

    @property
    def grid(self) -> int:
        return -(-self.x_size // self.x_block)


def choose_blocks(kernel: Kernel) -> Blocks:
    x_size = math.prod(kernel.sizes[: kernel.outer])
    r_size = math.prod(kernel.sizes[kernel.outer :])
    if kernel.outer == len(kernel.loops):
        block = min(_BLOCK, _power_of_two(x_size))
        return Blocks(x_size, 1, block, 1, True, 4)
    persistent = r_size <= _LARGEST_PERSISTENT
    if not persistent and _neighbours_are_outer(kernel):
        # the reduced loop strides through memory: take many rows at once, so that loads stay coalesced
        x_block = min(64, _power_of_two(x_size))
        r_block = max(_BLOCK // x_block, 1)
    else:
        r_block = _power_of_two(r_size) if persistent else _BLOCK
        x_block = min(max(_BLOCK // r_block, 1), _power_of_two(x_size))
    return Blocks(x_size, r_size, x_block, r_block, persistent, 8 if x_block * r_block > _BLOCK else 4)


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _neighbours_are_outer(kernel: Kernel) -> bool:
    """True if most loads touch neighbouring elements along the last shared loop, not along the last inner loop."""
    if not kernel.outer:
        return False
    shared, inner = kernel.loops[kernel.outer - 1], kernel.loops[-1]
    votes = 0
    for value in kernel.values:
        if value.name == "load":
            votes += (value.args[1].coefficient(shared) == 1) - (value.args[1].coefficient(inner) == 1)
    return votes > 0
