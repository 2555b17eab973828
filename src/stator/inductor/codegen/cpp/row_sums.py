"""Kernels that add whole vectors to rows chosen by data. Threads share the rows: each runs all the loops, and adds to
rows of its own alone. Sums then have the order of the loops, and need no atomics.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator

from stator.inductor.codegen.kernel import Kernel
from stator.shapes.expr import Expr

from .types import LANES


def row_of_sums(kernel: Kernel) -> int | None:
    """The value that numbers the rows to which all sums of a kernel go; rows share no memory."""
    sums = [store for store in kernel.stores if store.mode is not None]
    if not sums or kernel.inner_bits or any(store.mode not in (None, "add") for store in sums):
        return None
    rows = [{kernel.indirect[symbol] for symbol in s.index.symbols if symbol in kernel.indirect} for s in sums]
    row = min(set.intersection(*rows), default=None)
    if row is None or any(s.mask is not None or kernel.values[row].loops & ~s.loops for s in kernel.stores):
        return None
    return row


def loop_along_rows(kernel: Kernel) -> int | None:
    """The loop along the rows that a kernel adds to: its lanes write neighbours, of which none comes twice."""
    if row_of_sums(kernel) is None:
        return None
    indices = [store.index for store in kernel.stores if store.mode is not None]
    symbols = {symbol for index in indices for symbol in index.symbols if symbol in kernel.indirect}
    varying = functools.reduce(operator.or_, (kernel.values[kernel.indirect[symbol]].loops for symbol in symbols))
    for loop in reversed(range(kernel.outer)):
        steps = {index.coefficient(kernel.loops[loop]) for index in indices}
        if not varying & (1 << loop) and steps == {1} and kernel.typical[loop] >= LANES:
            return loop
    return None


def own_rows(kernel: Kernel, row: int) -> Iterator[str]:
    """Text that gives each thread a range of the rows."""
    size = kernel.values[row].args[1]
    number = kernel.text(size) if isinstance(size, Expr) else f"{size}ll"
    for name, part in (("own_begin", "omp_get_thread_num()"), ("own_end", "(omp_get_thread_num() + 1)")):
        yield f"const int64_t {name} = {number} * {part} / omp_get_num_threads();"


def skip_of_others(row: int, in_loop: bool) -> str:
    """Text that leaves the rest of a loop, or of the whole text, to the thread that the row belongs to."""
    return f"if (indirect{row} < own_begin || indirect{row} >= own_end) {'continue' if in_loop else 'return'};"
