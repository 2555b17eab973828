"""Decides which loop becomes the vector lanes, and the order of the loops, by a cost model. Prints nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stator.inductor.codegen.kernel import Kernel, KernelValue, Store
from stator.inductor.loops.vocabulary import HEAVY
from stator.shapes.expr import Expr

from .row_sums import loop_along_rows
from .types import KIND, LANES

# Cost of one element in units of a vectorised unit-stride access of a whole vector
_VECTOR_UNIT, _VECTOR_TILED, _VECTOR_NEAR, _VECTOR_STRIDED, _VECTOR_GATHER = 1 / 16, 5 / 16, 7 / 16, 12 / 16, 14 / 16
_SCALAR = 1.0
_NEAR = 8  # elements between lanes that still share cache lines
_FAR, _MANY = 1024, 512  # bytes between stores, and their number, from which each run stores to lines anew
_MIN_TILE, _MUCH_LONGER = 4, 3
_MOST_WASTE = 1.25  # lanes of the vectors of a row for each of its elements, up to which scans run along lanes


@dataclass(frozen=True, slots=True)
class LoopOrder:
    """Loops by number, outermost first. `vector`: the loop that lanes run along, or None. `tile`: a loop inside of
    `vector` along which some loads are contiguous; these loads are read in square tiles and transposed.
    `blocks_outside`: the blocks of `tile` are around the loop of `vector`, their iterations inside of it."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    vector: int | None
    tile: int | None = None
    blocks_outside: bool = False


def choose_order(kernel: Kernel, enabled: bool = True) -> LoopOrder:
    outer = tuple(range(kernel.outer))
    inner = tuple(range(kernel.outer, len(kernel.loops)))
    if enabled and (along := loop_along_rows(kernel)) is not None:
        return LoopOrder(_last(outer, along), inner, along)
    if not enabled or not kernel.loops or any(_is_unusual(store) for store in kernel.stores):
        return LoopOrder(outer, inner, None)
    accesses = _accesses(kernel)
    # later loops come first, so that they win ties
    candidates = [*reversed(inner), *([] if kernel.rows_each else reversed(outer))]
    if kernel.ordered and inner:
        # a scan along the lanes costs several steps, which empty lanes take as well
        short = bool(kernel.scans) and _waste(kernel.typical[inner[-1]]) > _MOST_WASTE
        candidates = [] if short else [inner[-1], *reversed(outer)]
    costs = [(_cost(kernel, accesses, candidate), number) for number, candidate in enumerate(candidates)]
    cost, number = min(costs, default=(math.inf, 0))
    if cost >= _cost(kernel, accesses, None):
        return LoopOrder(outer, inner, None)
    chosen = candidates[number]
    if chosen in inner:
        return LoopOrder(outer, _last(inner, chosen), chosen)
    if inner:
        return LoopOrder(_last(outer, chosen), inner, chosen)
    tile = _tile_loop(kernel, chosen)
    if tile is not None:
        outer = (*(loop for loop in outer if loop not in (chosen, tile)), chosen, tile)
        return LoopOrder(outer, inner, chosen, tile, _along_vectors(kernel, chosen, tile))
    return LoopOrder(_heavy_outside(kernel, outer, chosen), inner, chosen)


def _is_unusual(store: Store) -> bool:
    return store.mode not in (None, "row_sum") or store.mask is not None


def _last(loops: tuple[int, ...], chosen: int) -> tuple[int, ...]:
    return (*(loop for loop in loops if loop != chosen), chosen)


def tiled_load(kernel: Kernel, value: KernelValue, vector: int, tile: int) -> bool:
    """True if this load can be read in tiles: contiguous along `tile`, with lanes that lie further apart."""
    if value.name != "load" or value.args[2] is not None or value.dtype not in KIND:
        return False
    index = value.args[1]
    if not index.symbols.isdisjoint(kernel.indirect):
        return False
    return index.coefficient(kernel.loops[tile]) == 1 and (kernel.step(index, vector) or 0) > 1


def _tile_loop(kernel: Kernel, vector: int) -> int | None:
    votes = {
        loop: sum(tiled_load(kernel, value, vector, loop) for value in kernel.values)
        for loop in range(kernel.outer)
        if loop != vector and kernel.typical[loop] >= _MIN_TILE and kernel.typical[vector] >= _MIN_TILE
    }
    best = max(votes, key=lambda loop: votes[loop], default=None)
    return best if best is not None and votes[best] else None


def _along_vectors(kernel: Kernel, vector: int, tile: int) -> bool:
    """True if more memory goes on along the vectors than along the tiles: the other jumps from tile to tile. Of equally
    much memory, if the loop of the vectors is much longer."""
    loads = [value.args[1] for value in kernel.values if value.name == "load" and value.loops & (1 << tile)]
    accesses = [*loads, *(store.index for store in kernel.stores)]
    on = [(index.coefficient(kernel.loops[vector]), index.coefficient(kernel.loops[tile])) for index in accesses]
    along_vectors = sum(first == 1 and second != 0 for first, second in on)
    along_tiles = sum(second == 1 for _, second in on)
    is_longer = kernel.typical[vector] >= _MUCH_LONGER * kernel.typical[tile]
    return along_vectors > along_tiles or (along_vectors == along_tiles and is_longer)


def _heavy_outside(kernel: Kernel, outer: tuple[int, ...], chosen: int) -> tuple[int, ...]:
    """Put the vector loop last, or before those loops that dear operations do not vary with, or that store between the
    lanes. Indices are read again rather than that many stores jump far."""
    bit, heavy, found = 1 << chosen, 0, 0
    for value in kernel.values:
        heavy |= value.loops if value.name in HEAVY else 0
        found |= value.loops if value.name == "indirect" else 0
    rest = _in_order_of_loads(kernel, [loop for loop in outer if loop != chosen], chosen)
    if not (heavy | found) & bit:
        between = [loop for loop in rest if _stores_between_lanes(kernel, loop, chosen)]
        return (*(loop for loop in rest if loop not in between), chosen, *between)
    outside = [
        loop for loop in rest if (heavy | found) & (1 << loop) or (not heavy & bit and _stores_jump_far(kernel, loop))
    ]
    return (*outside, chosen, *(loop for loop in rest if loop not in outside))


def _stores_between_lanes(kernel: Kernel, loop: int, chosen: int) -> bool:
    """True if a run of the loop stores to the elements between the lanes: while their lines are in the first-level
    cache, in all iterations of the loop for a vector rather than in a pass over memory for each."""
    steps = [(kernel.step(s.index, loop) or 0, kernel.step(s.index, chosen) or 0) for s in kernel.stores]
    return all(step > 0 and step * kernel.typical[loop] <= lanes <= _NEAR for step, lanes in steps)


def _stores_jump_far(kernel: Kernel, loop: int) -> bool:
    """True if the first-level cache may lose the lines that a run of the loop stores to before the next run."""
    steps = [(kernel.step(s.index, loop) or 0) * kernel.values[s.value].dtype.itemsize for s in kernel.stores]
    return kernel.typical[loop] >= _MANY and any(abs(step) > _FAR for step in steps)


def _in_order_of_loads(kernel: Kernel, loops: list[int], chosen: int) -> list[int]:
    """Put that loop last along which loads go on where the vectors end, if it is no longer than the one along which
    stores do. Each iteration of the last loop is at another place of the other memory: few places are asked for ahead,
    and of two orders with equally many, stores need not wait for memory."""
    loads = [value.args[1] for value in kernel.values if value.name == "load" and value.loops & (1 << chosen)]
    stores = [store.index for store in kernel.stores]

    def goes_on(indices: list[Expr], loop: int) -> bool:
        steps = {(kernel.step(index, chosen), kernel.step(index, loop)) for index in indices}
        return steps - {(1, 0), (0, 0)} == {(1, kernel.typical[chosen])}

    last = next((loop for loop in loops if goes_on(loads, loop)), None)
    if last is None or not goes_on(stores, loops[-1]) or kernel.typical[last] > kernel.typical[loops[-1]]:
        return loops
    return [*(loop for loop in loops if loop != last), last]


def _waste(size: int) -> float:
    """The lanes of the vectors of a loop over its iterations."""
    return math.ceil(size / LANES) * LANES / max(size, 1)


def _accesses(kernel: Kernel) -> list[tuple[Expr, int, float]]:
    """(index, surrounding loops, weight) of every load and store."""
    found = []
    for value in kernel.values:
        if value.name == "load":
            found.append((value.args[1], value.loops, 1.0))
    for store in kernel.stores:
        found.append((store.index, store.loops, 1.5))
    return found


def _cost(kernel: Kernel, accesses: list[tuple[Expr, int, float]], chosen: int | None) -> float:
    total = 0.0
    size = 1 if chosen is None else kernel.typical[chosen]
    waste = _waste(size)
    indirect = set(kernel.indirect)
    tiles = chosen is not None and not kernel.inner_bits and _tile_loop(kernel, chosen) is not None
    for index, loops, weight in accesses:
        if chosen is None or not loops & (1 << chosen):
            total += weight * _SCALAR * _count(kernel, loops)
        elif not index.symbols.isdisjoint(indirect) and any(
            kernel.values[kernel.indirect[s]].loops & (1 << chosen) for s in index.symbols & indirect
        ):
            total += weight * _VECTOR_GATHER * waste * _count(kernel, loops)
        else:
            each = _access_cost(kernel, index, chosen, tiles)
            total += weight * each * waste * _count(kernel, loops)
    for value in kernel.values:
        if value.name not in ("load", "constant", "index_value"):
            each = (20.0 if value.name in HEAVY else 1.0) * _count(kernel, value.loops)
            total += each * (_VECTOR_UNIT * waste if chosen is not None and value.loops & (1 << chosen) else 1.0) * 0.5
    return total


def _access_cost(kernel: Kernel, index: Expr, chosen: int, tiles: bool) -> float:
    """The cost for lanes along `chosen`. tiles: whether some loads would be read in tiles; stores gain from it, too."""
    step = kernel.step(index, chosen)
    if step is None:
        return _VECTOR_GATHER
    if index.coefficient(kernel.loops[chosen]) == 1:
        return _VECTOR_UNIT
    if tiles and any(
        index.coefficient(kernel.loops[loop]) == 1 and kernel.typical[loop] >= _MIN_TILE
        for loop in range(kernel.outer)
        if loop != chosen
    ):
        return _VECTOR_TILED
    return _VECTOR_NEAR if abs(step) <= _NEAR else _VECTOR_STRIDED


def _count(kernel: Kernel, loops: int) -> int:
    return math.prod(size for at, size in enumerate(kernel.typical) if loops & (1 << at))
