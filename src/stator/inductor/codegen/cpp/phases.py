"""Plans the runs over the inner loops: the values that each run computes, and those that it keeps in scratch rows for
later runs instead of recomputing them. Prints nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from stator.inductor.codegen.kernel import Kernel, Store
from stator.inductor.codegen.sampled_means import sampled
from stator.inductor.loops.vocabulary import HEAVY

# Scratch rows live on a thread's stack, and should fit in its second-level cache, all of them together
SCRATCH_BYTES = 1 << 20
_HEAVY_COST = 10
_HALF_FLOATS, _HALF_FLOAT_COST = (torch.float16, torch.bfloat16), 3  # a load that widens
_RECOMPUTE_COST = 4  # two loads and two operations: no dearer than to write scratch and to read it


@dataclass(slots=True)
class Phase:
    """One run over the inner loops. `values`: values to compute, in order; `reduces`: the accumulators; `stores`;
    `keeps`: values written to scratch here; `fetches`: values read from scratch here.
    """

    values: list[int] = field(default_factory=list)
    reduces: list[int] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    keeps: list[int] = field(default_factory=list)
    fetches: set[int] = field(default_factory=set)


@dataclass(slots=True)
class PhasePlan:
    """`outside`: live values that do not vary with the inner loops."""

    phases: list[Phase]
    outside: list[int]
    outside_stores: list[Store]


def plan_phases(kernel: Kernel, innermost: int | None, lanes_across_rows: bool) -> PhasePlan:
    """`innermost`: the fastest inner loop. Values that do not vary with it are computed rarely and never kept.
    `lanes_across_rows`: as many rows are in flight as a vector has lanes."""
    fastest = 0 if innermost is None else 1 << innermost
    inner = kernel.inner_bits
    phases = [Phase() for _ in range(kernel.phases)]
    live_reduces = _live_reduces(kernel)
    for position in live_reduces:
        phases[kernel.values[kernel.values[position].args[1].position].phase].reduces.append(position)
    outside_stores = []
    for store in kernel.stores:
        if store.loops & inner:
            phases[store.phase].stores.append(store)
        else:
            outside_stores.append(store)
    first: dict[int, int] = {}  # maps an inner value to the first phase that computes it
    kept: set[int] = set()
    elements = math.prod(kernel.typical[kernel.outer :]) * (16 if lanes_across_rows else 1)
    free = SCRATCH_BYTES
    outside: set[int] = set()
    for number, phase in enumerate(phases):
        needed: set[int] = set()
        pending = _roots(kernel, phase)
        while pending:
            position = pending.pop()
            if position in needed:
                continue
            value = kernel.values[position]
            if not value.loops & inner:
                outside.add(position)
                continue
            needed.add(position)
            again = position in first and value.name != "indirect" and value.loops & fastest
            size = elements * max(value.dtype.itemsize, 4)
            fits = position in kept or size <= free
            if again and fits and (position in kept or _cost(kernel, position, kept) > _RECOMPUTE_COST):
                phase.fetches.add(position)
                if position not in kept:
                    free -= size
                    kept.add(position)
                    phases[first[position]].keeps.append(position)
                continue
            pending += kernel.operands(value.args)
        for position in needed:
            if position not in phase.fetches and sampled(kernel, phase.reduces) is None:
                first.setdefault(position, number)
        phase.values = sorted(needed)
    pending = [*outside, *live_reduces]
    for store in outside_stores:
        pending += kernel.store_operands(store)
    outside = set()
    while pending:
        position = pending.pop()
        value = kernel.values[position]
        if position not in outside and not value.loops & inner:
            outside.add(position)
            if value.name != "reduce":
                pending += kernel.operands(value.args)
    return PhasePlan(phases, sorted(outside), outside_stores)


def _roots(kernel: Kernel, phase: Phase) -> list[int]:
    roots = [kernel.values[position].args[1].position for position in phase.reduces]
    for store in phase.stores:
        roots += kernel.store_operands(store)
    return roots


def _live_reduces(kernel: Kernel) -> list[int]:
    return [position for position in kernel.live_values() if kernel.values[position].name == "reduce"]


def _cost(kernel: Kernel, position: int, kept: set[int]) -> int:
    """The cost of computing a value again inside the inner loops, starting from memory or scratch rows."""
    seen: set[int] = set()
    pending, total = [position], 0
    while pending and total <= _RECOMPUTE_COST:
        at = pending.pop()
        value = kernel.values[at]
        if at in seen or not value.loops & kernel.inner_bits:
            continue
        seen.add(at)
        if at in kept:
            total += 1
            continue
        if value.name == "load" and value.dtype in _HALF_FLOATS:
            total += _HALF_FLOAT_COST
        else:
            total += _HEAVY_COST if value.name in HEAVY or value.name == "scan" else 1
        pending += kernel.operands(value.args)
    return total
