"""Indices in terms of flattened loops, and the places where rows begin in memory. Prints nothing."""

from __future__ import annotations

from collections import Counter

from stator.inductor.codegen.kernel import Kernel
from stator.shapes.expr import ZERO, Expr, ExprLike, Symbol, as_expr
from stator.shapes.simplify import add_loop

from .access_patterns import accesses
from .blocks import ALIGNED, Blocks

X, R = Symbol("x"), Symbol("r")  # the flattened loops in indices


def along_flat(kernel: Kernel, index: Expr, flat: Symbol, loops: tuple[int, ...], size: ExprLike) -> Expr:
    """An index that walks through flattened loops as through one, in terms of that one: without divisions, and
    contiguous also where the sizes of loops are odd."""
    symbols = [kernel.loops[at] for at in loops]
    if len(loops) < 2 or index.symbols.isdisjoint(symbols):
        return index
    step: ExprLike | None = index.coefficient(symbols[-1])
    expected = step
    for at in reversed(loops):
        if expected is None or index.coefficient(kernel.loops[at]) != expected:
            return index
        expected = expected * kernel.sizes[at]
    if flat not in kernel.ranges:
        add_loop(kernel.ranges, flat, size)
    return index.substitute({**dict.fromkeys(symbols, ZERO), symbols[-1]: flat})


def start_of_row(kernel: Kernel, blocks: Blocks, index: Expr) -> Expr | None:
    """The index of a row's first element, where the row's elements are neighbours in memory."""
    flat = along_flat(kernel, index, R, blocks.r_loops, blocks.r_size)
    row = R if len(blocks.r_loops) > 1 else kernel.loops[blocks.r_loops[0]]
    if flat.coefficient(row) != 1:
        return None
    start = as_expr(flat.substitute({row: ZERO}))
    inner = {*kernel.loops[kernel.outer :], R, *kernel.indirect}
    return start if inner.isdisjoint(start.symbols) else None


def unaligned_start(kernel: Kernel, blocks: Blocks) -> Expr | None:
    """Where rows that are looped over begin, if most accesses begin there, and wide accesses need more than a mask for
    the last block: the rows begin or end anywhere. None for other kernels, for scans, whose loops keep their order, and
    where a program has several rows."""
    if blocks.persistent or blocks.x_block != 1 or kernel.outer == len(kernel.loops) or kernel.scans:
        return None
    found = [start_of_row(kernel, blocks, index) for index, _ in accesses(kernel)]
    starts = Counter([start for start in found if start is not None])
    if not starts:
        return None
    start = max(starts, key=lambda one: (starts[one], len(one.symbols)))
    divides = kernel.knowledge.divides
    coefficients = [start.coefficient(symbol) for symbol in start.symbols if symbol in (*kernel.loops, X)]
    steps = [1 if step is None else step for step in coefficients]  # None: it varies
    return None if all(divides(ALIGNED, size) for size in (blocks.r_size, *steps)) else start
