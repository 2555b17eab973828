"""Which loop becomes the vector lanes, and in which order the loops run. A cost model; no text is made here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stator.inductor.loops.vocabulary import HEAVY
from stator.shapes.expr import Expr

from .kernel import Kernel

# Cost of one element relative to a vectorised unit-stride access of a whole vector, which is 1
_VECTOR_UNIT, _VECTOR_STRIDED, _VECTOR_GATHER, _SCALAR = 1.0 / 16, 10.0 / 16, 14.0 / 16, 1.0
_LANES = 16  # what the estimates assume; the text itself works for any


@dataclass(frozen=True, slots=True)
class LoopOrder:
    """Loops by number, outermost first. `vector`: the loop that lanes run along (the last of its section), or None."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    vector: int | None


def choose_order(kernel: Kernel, enabled: bool = True) -> LoopOrder:
    outer = tuple(range(kernel.outer))
    inner = tuple(range(kernel.outer, len(kernel.loops)))
    if not enabled or not kernel.loops or any(store.mode or store.mask is not None for store in kernel.stores):
        return LoopOrder(outer, inner, None)
    fixed = any(value.name == "reduce" and value.args[0].startswith("arg") for value in kernel.values)
    accesses = _accesses(kernel)
    # later loops first: they win ties
    candidates = [*reversed(inner), *reversed(outer)]
    if fixed and inner:
        candidates = [inner[-1], *reversed(outer)]
    costs = [(_cost(kernel, accesses, candidate), number) for number, candidate in enumerate(candidates)]
    cost, number = min(costs)
    if cost >= _cost(kernel, accesses, None):
        return LoopOrder(outer, inner, None)
    chosen = candidates[number]
    if chosen in inner:
        return LoopOrder(outer, _last(inner, chosen), chosen)
    return LoopOrder(_last(outer, chosen), inner, chosen)


def _last(loops: tuple[int, ...], chosen: int) -> tuple[int, ...]:
    return (*(loop for loop in loops if loop != chosen), chosen)


def _accesses(kernel: Kernel) -> list[tuple[Expr, int, float]]:
    """(index, loops it runs in, weight) of every load and store."""
    found = []
    for value in kernel.values:
        if value.name == "load":
            found.append((value.args[1], value.loops, 1.0))
    for store in kernel.stores:
        found.append((store.index, store.loops, 1.5))
    return found


def _cost(kernel: Kernel, accesses: list[tuple[Expr, int, float]], chosen: int | None) -> float:
    total = 0.0
    size = 1 if chosen is None else kernel.sizes[chosen]
    waste = math.ceil(size / _LANES) * _LANES / max(size, 1)
    indirect = set(kernel.indirect)
    for index, loops, weight in accesses:
        if chosen is None or not loops & (1 << chosen):
            total += weight * _SCALAR * _count(kernel, loops)
        elif not index.symbols.isdisjoint(indirect) and any(
            kernel.values[kernel.indirect[s]].loops & (1 << chosen) for s in index.symbols & indirect
        ):
            total += weight * _VECTOR_GATHER * waste * _count(kernel, loops)
        else:
            step = index.coefficient(kernel.loops[chosen])
            each = _VECTOR_UNIT if step == 1 else _VECTOR_GATHER if step is None else _VECTOR_STRIDED
            total += weight * each * waste * _count(kernel, loops)
    for value in kernel.values:
        if value.name not in ("load", "constant", "index_value"):
            each = (20.0 if value.name in HEAVY else 1.0) * _count(kernel, value.loops)
            total += each * (_VECTOR_UNIT * waste if chosen is not None and value.loops & (1 << chosen) else 1.0) * 0.5
    return total


def _count(kernel: Kernel, loops: int) -> int:
    return math.prod(size for at, size in enumerate(kernel.sizes) if loops & (1 << at))
