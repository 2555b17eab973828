"""Divides a kernel's iterations into Triton programs and blocks, by a cost model. Prints nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stator.inductor.codegen.kernel import Kernel
from stator.inductor.sizes import product
from stator.shapes.expr import ExprLike

_BLOCK = 1024  # elements of a block: a few for each thread of four warps
_LARGEST_PERSISTENT = 2048  # a row up to this length stays in registers
_SHORTEST_STEP = 128  # of loops whose rows may be longer than those of the example


@dataclass(frozen=True, slots=True)
class Blocks:
    """x: the shared loops, flattened; r: the inner loops, flattened (one iteration without inner loops).

    persistent: a whole row is one block, so that every inner value is computed once. masked: the last block may be
    partly outside.
    """

    x_size: ExprLike
    r_size: ExprLike
    x_block: int
    r_block: int
    x_masked: bool
    r_masked: bool
    persistent: bool

    @property
    def warps(self) -> int:
        return 8 if self.x_block * self.r_block > _BLOCK else 4


def choose_blocks(kernel: Kernel) -> Blocks:
    """Blocks for all sizes in their ranges: a row is persistent only if no row can be longer than a block."""
    knowledge = kernel.knowledge
    x_size, r_size = product(kernel.sizes[: kernel.outer]), product(kernel.sizes[kernel.outer :])
    most_x, most_r = knowledge.bounded(x_size)[1], knowledge.bounded(r_size)[1]
    persistent = most_r <= _LARGEST_PERSISTENT
    if kernel.outer == len(kernel.loops):
        x_block, r_block = _block(most_x, _BLOCK), 1
    elif persistent:
        r_block = _block(most_r, _LARGEST_PERSISTENT)
        x_block = _block(most_x, max(_BLOCK // r_block, 1))
    elif _neighbours_are_outer(kernel):
        # the reduced loop strides through memory: take many rows at once, so that loads stay coalesced
        x_block = _block(most_x, 64)
        r_block = max(_BLOCK // x_block, 1)
    else:
        typical = max(_power_of_two(math.prod(kernel.typical[kernel.outer :])), _SHORTEST_STEP)
        r_block = min(typical, _BLOCK)
        x_block = _block(most_x, _BLOCK // r_block)
    masked = [not knowledge.divides(block, size) for block, size in ((x_block, x_size), (r_block, r_size))]
    return Blocks(x_size, r_size, x_block, r_block, masked[0], masked[1], persistent)


def _block(most: float, limit: int) -> int:
    """The block for at most so many iterations."""
    return limit if most >= limit else _power_of_two(int(most))


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
