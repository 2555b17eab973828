"""Prints scans along columns: a block of columns goes down the rows together, and memory holds the values so far.
Blocks are as wide as threads and the nearest cache allow, since rows are read quickest in one piece.
column_plan.py decides which kernels are printed this way.
"""

from __future__ import annotations

from .emit import Emitter
from .scans import begin_scan, declare_carry, scans
from .types import KIND

_BYTES = 16384  # of what a block's columns have so far: half of a first-level cache


def emit_column_scans(printer: Emitter) -> None:
    """Print the loop that lanes run along, and everything inside of it."""
    kernel, order, phase = printer.kernel, printer.order, printer.plan.phases[0]
    loop = order.vector
    assert loop is not None
    name, size, bit = kernel.loops[loop].name, kernel.size(loop), 1 << loop
    wide = [position for position in scans(kernel, phase) if kernel.values[position].loops & bit]
    widest = _BYTES // sum(8 if KIND[printer.dtype(position)] in ("i64", "f64") else 4 for position in wide) // 16 * 16
    shared = printer.parallel_at == len(order.outer) - 1
    threads = "omp_get_num_threads()" if shared else "1"
    printer.line(f"const int64_t {name}_width = columns_of_block({size}, {threads}, {widest});")
    if shared:
        printer.line("#pragma omp for schedule(static) nowait")
    begin, end = f"{name}_begin", f"{name}_end"
    with printer.block(f"for (int64_t {begin} = 0; {begin} < {size}; {begin} += {name}_width)"):
        printer.line(f"const int64_t {end} = {begin} + {name}_width < {size} ? {begin} + {name}_width : {size};")
        for position in scans(kernel, phase):
            declare_carry(printer, position, f"[{widest} / LANES]" if position in wide else "")
            if position not in wide:
                begin_scan(printer, position)
        with printer.block(f"for (int64_t {name} = {begin}; {name} < {end}; {name} += LANES)"):
            for position in wide:
                begin_scan(printer, position)

        def rows(depth: int) -> None:
            for position in phase.values:
                if not kernel.values[position].loops & bit and printer._inner_place(position, phase) == depth:
                    printer._define(position)
            if depth < len(order.inner):
                printer.loop(order.inner[depth], lambda: rows(depth + 1))
                return
            printer.bounds = (loop, begin, end)
            printer.loop(loop, columns)
            printer.bounds = None

        def columns() -> None:
            for position in sorted([*printer.plan.outside, *phase.values]):
                if kernel.values[position].loops & bit:
                    printer._define(position)
            for store in phase.stores:
                printer._store(store)

        rows(0)
