"""Finds reductions that one accumulation computes together, also those of the next phase. Prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stator.inductor.codegen.kernel import Kernel
from stator.inductor.loops.body import Ref

from .access_patterns import neighbours_are_outer


@dataclass(frozen=True, slots=True)
class Moments:
    """Positions of the sum of x, of the mean that follows from it, and of the sums of x - mean and of its square."""

    total: int
    mean: int
    deviations: int
    squares: int | None


@dataclass(frozen=True, slots=True)
class NextPhase:
    """Reductions of the next phase that need no loop of their own. exponentials: for maxima of this phase, the sums of
    exponentials of the distances from them."""

    exponentials: dict[int, int]
    moments: list[Moments]


def next_phase_at_once(kernel: Kernel, phase: int) -> NextPhase | None:
    """The reductions of the next phase, if all can be computed in this one, and nothing else runs over the row then.

    Where a maximum grows, the sum of exponentials so far shrinks (M. Milakov and N. Gimelshein, 2018). Along columns,
    where this happens once for each element, it takes longer than a second run over a column that is near, and no
    further run may follow. Moments around the mean follow from
    those around the mean of the first elements. If k of n elements were first, the squared distance of both means is
    below n / k times the variance, so that a sum of squares is at most so much larger than the result."""
    behind = reductions(kernel, phase + 1)
    if not behind or inner_stores(kernel, phase + 1) or kernel.scans:
        return None
    now = reductions(kernel, phase)
    exponentials = {_maximum_below(kernel, total): total for total in behind}
    quick = phase + 2 == kernel.phases or not neighbours_are_outer(kernel)
    if len(exponentials) == len(behind) and exponentials.keys() <= {*now} and quick:
        return NextPhase(exponentials, [])
    moments = _moments(kernel, behind)
    return NextPhase({}, moments) if moments and {one.total for one in moments} <= {*now} else None


def joint_phases(kernel: Kernel) -> int:
    """The number of phases that run over no row of their own, if rows are looped over."""
    joint, phase = 0, 0
    while phase < kernel.phases:
        phase += 1
        if next_phase_at_once(kernel, phase - 1) is not None:
            joint, phase = joint + 1, phase + 1
    return joint


def reductions(kernel: Kernel, phase: int) -> list[int]:
    """The positions of the reductions whose operands need exactly this many complete phases."""
    values = kernel.values
    return [
        position
        for position in kernel.live_values()
        if values[position].name == "reduce" and values[values[position].args[1].position].phase == phase
    ]


def inner_stores(kernel: Kernel, phase: int) -> bool:
    return any(store.loops & kernel.inner_bits and store.phase == phase for store in kernel.stores)


def _maximum_below(kernel: Kernel, total: int) -> int:
    """The maximum in sum(exp(x - max(x))), or -1."""
    kind, exponential = kernel.values[total].args
    if kind != "sum" or kernel.values[exponential.position].name != "exp":
        return -1
    distance = kernel.values[kernel.values[exponential.position].args[0].position]
    if distance.name != "sub" or distance.dtype is not torch.float32:
        return -1
    value, largest = distance.args
    reduce = kernel.values[largest.position]
    return largest.position if reduce.name == "reduce" and reduce.args == ("max", Ref(value.position)) else -1


def _moments(kernel: Kernel, sums: Sequence[int]) -> list[Moments]:
    """The moments that consist of these sums; empty if a sum is part of none."""
    around: dict[int, list[int]] = {}  # sums by x - mean
    for at in sums:
        kind, summand = kernel.values[at].args
        if kind != "sum":
            return []
        value = kernel.values[summand.position]
        square = value.name == "mul" and value.args[0] == value.args[1]
        around.setdefault(value.args[0].position if square else summand.position, [-1, -1])[square] = at
    found = [_moments_around(kernel, position, *pair) for position, pair in around.items()]
    return [] if None in found else [one for one in found if one is not None]


def _moments_around(kernel: Kernel, deviation: int, deviations: int, squares: int) -> Moments | None:
    value = kernel.values[deviation]
    if deviations < 0 or value.name != "sub" or value.dtype not in (torch.float32, torch.float64):
        return None
    x, mean = value.args
    quotient = kernel.values[mean.position]
    if quotient.name != "div" or quotient.loops & kernel.inner_bits:
        return None
    total = quotient.args[0].position
    reduce = kernel.values[total]
    if reduce.name != "reduce" or reduce.args != ("sum", Ref(x.position)):
        return None
    return Moments(total, mean.position, deviations, squares if squares >= 0 else None)


def extrema_with_positions(kernel: Kernel, reduces: Sequence[int]) -> dict[int, int]:
    """For extrema whose positions are computed, too, the reductions to these positions."""
    positions = {kernel.values[at].args: at for at in reduces}
    return {
        at: positions[f"arg{kind}", source]
        for (kind, source), at in positions.items()
        if (f"arg{kind}", source) in positions
    }
