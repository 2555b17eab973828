"""Prints the loop over rows that are added up column by column: part by part, each with sums of its own in memory. The
schedule makes such kernels (schedule/column_sums.py)."""

from __future__ import annotations

from collections.abc import Callable

from stator.inductor.sizes import ceil_div, product
from stator.shapes.expr import ZERO, Symbol

from .loop_sizes import part_bounds
from .values import EmitterContext


def emit_rows_in_parts(printer: EmitterContext, loop: int, body: Callable[[], None], shared: bool) -> None:
    """Emit the only outer loop. Threads share the parts; the sums of a part begin as zeros."""
    kernel, each = printer.kernel, printer.kernel.rows_each
    if shared:
        printer.line("#pragma omp for schedule(static) nowait")
    with printer.block(f"for (int64_t part = 0; part < {kernel.text(ceil_div(kernel.sizes[loop], each))}; ++part)"):
        for text in part_bounds(kernel, loop, str(each)):
            printer.line(text)
        start = {kernel.loops[loop]: Symbol("begin"), **dict.fromkeys(kernel.loops[kernel.outer :], ZERO)}
        columns = kernel.text(product(kernel.sizes[kernel.outer :]))
        for store in kernel.stores:
            if store.mode == "row_sum":
                sums = printer.at(store.buffer, store.index.substitute(start))
                printer.line(f"__builtin_memset({sums}, 0, {columns} * sizeof(float));")

        def one_row() -> None:
            printer.bounds = None
            body()

        printer.bounds = (loop, "begin", "end")
        printer.loop(loop, one_row)
        printer.bounds = None
