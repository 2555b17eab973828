"""Prints blocks of a loop, and the tiles that a block reads along this loop and transposes. vectorize.py chooses it."""

from __future__ import annotations

from collections.abc import Callable

from stator.shapes.expr import Symbol

from .types import KIND, VECTOR
from .values import EmitterContext

SHARED = "#pragma omp for schedule(static) nowait"  # among threads


def emit_blocks(printer: EmitterContext, loop: int, body: Callable[[], None], shared: bool) -> None:
    """Blocks of LANES iterations. `m`: the number of iterations in one, where the last may have fewer."""
    name, size = printer.kernel.loops[loop].name, printer.kernel.size(loop)
    if shared:
        printer.line(SHARED)
    with printer.block(f"for (int64_t {name}b = 0; {name}b < {size}; {name}b += LANES)"):
        if not printer.kernel.fills_lanes(loop):
            printer.line(f"const int m = {size} - {name}b < LANES ? {size} - {name}b : LANES;")
        body()


def emit_tile(printer: EmitterContext, loop: int, body: Callable[[], None]) -> None:
    """The iterations of a block. Loads that are contiguous along this loop are transposed before."""
    symbol, rows = printer.kernel.loops[loop], "LANES" if printer.kernel.fills_lanes(loop) else "m"
    name = symbol.name
    for position in printer.plan.outside:
        value = printer.kernel.values[position]
        if printer.is_tiled(value):
            start = value.args[1].substitute({symbol: Symbol(f"{name}b")})
            assert printer.lane_symbol is not None
            step = printer.size_text(start.coefficient(printer.lane_symbol))
            first = printer.at(value.args[0], start)
            printer.line(f"{VECTOR[KIND[value.dtype]]} tile{position}[LANES];")
            printer.line(f"load_tile(tile{position}, {first}, {step}, {printer.lanes}, {rows});")
    with printer.block(f"for (int64_t {name} = {name}b; {name} < {name}b + {rows}; ++{name})"):
        body()
