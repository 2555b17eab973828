"""Long sums as sums of partial sums. Their rounding error grows with the length of a part and the number of parts, not
with the number of terms. Decides where parts begin, and prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from stator.inductor.codegen.kernel import Kernel
from stator.inductor.sizes import ceil_div, product
from stator.shapes.expr import ZERO, Expr, Symbol

from .loop_sizes import is_symbolic, part_bounds
from .phases import Phase
from .types import KIND, LANES, SCALAR, VECTOR
from .values import EmitterContext
from .vectorize import LoopOrder

_LONG = 256  # the most terms that one accumulator takes up one after the other
PART = 128
_PARTS = 16  # parts of a loop of any length that are added up before they go to the sum


def part_depth(kernel: Kernel, order: LoopOrder) -> int | None:
    """The depth of the inner loop with runs (or pieces of runs) that make partial sums; None for short sums."""
    trips = [_trips(kernel, at, order) for at in order.inner]
    if math.prod(trips) <= _LONG:
        return None
    length = 1
    for depth in range(len(trips) - 1, -1, -1):
        length *= trips[depth]
        if length >= PART // 4:
            return depth
    return 0


def _trips(kernel: Kernel, loop: int, order: LoopOrder) -> int:
    """The iterations of a loop. A loop of symbolic size may be long."""
    if isinstance(kernel.sizes[loop], Expr):
        return max(kernel.typical[loop], 2 * _LONG)
    return math.ceil(kernel.typical[loop] / (LANES if loop == order.vector else 1))


def emit_in_parts(printer: EmitterContext, depth: int, phase: Phase, run: Callable[[], None]) -> None:
    """Emit the inner loop at `depth` by `run`. Its sums go to partial accumulators, which are added up after it."""
    sums = [position for position in phase.reduces if is_float_sum(printer.kernel, position)]
    if printer.part_depth is None or depth > printer.part_depth or not sums:
        run()
        return
    with _level(printer, sums) if depth and _is_leveled(printer) else nullcontext():
        if depth == printer.part_depth:
            _parts(printer, depth, sums, run)
        else:
            run()


def _parts(printer: EmitterContext, depth: int, sums: list[int], run: Callable[[], None]) -> None:
    loop = printer.order.inner[depth]
    size, name = printer.kernel.sizes[loop], printer.kernel.loops[loop].name
    step = PART * (LANES if loop == printer.order.vector else 1)
    if not isinstance(size, Expr) and size <= 2 * step:
        with printer.block(""):
            _one_part(printer, sums, run)
        return
    before = printer.bounds
    first, last = before[1:] if before is not None and before[0] == loop else ("0", printer.kernel.text(size))
    with ExitStack() as stack:
        if isinstance(size, Expr) and _is_leveled(printer):
            first, last = stack.enter_context(pieces(printer, f"{name}_group", first, last, _PARTS * step))
            stack.enter_context(_level(printer, sums))
        printer.bounds = (loop, *stack.enter_context(pieces(printer, name, first, last, step)))
        _one_part(printer, sums, run)
        printer.bounds = before


@contextmanager
def pieces(printer: EmitterContext, name: str, first: str, last: str, step: int) -> Iterator[tuple[str, str]]:
    """Open a loop over the pieces of a range, and yield the bounds of a piece."""
    begin, end = f"{name}_begin", f"{name}_end"
    with printer.block(f"for (int64_t {begin} = {first}; {begin} < {last}; {begin} += {step})"):
        printer.line(f"const int64_t {end} = {begin} + {step} < {last} ? {begin} + {step} : {last};")
        yield begin, end


def _is_leveled(printer: EmitterContext) -> bool:
    """Whether loops of unknown length are reduced without lanes along them, so that partial sums may be many."""
    return printer.order.vector not in printer.order.inner and is_symbolic(printer.kernel)


@contextmanager
def _level(printer: EmitterContext, sums: list[int]) -> Iterator[None]:
    """Open a block with accumulators of its own, which its end adds to those around it."""
    with printer.block(""):
        for position in sums:
            array = "" if printer.columns is None else f"[{printer.width}]"
            outer = f"&outer_a{position}" if printer.columns is None else f"(&outer_a{position})"
            printer.line(f"{_register(printer, position)} {outer}{array} = a{position};")
        with printer.block(""):
            _declare(printer, sums, "a")
            yield
            with _each(printer):
                for position in sums:
                    at = f"a{position}{printer.slot}"
                    printer.line(f"outer_{at} = outer_{at} + {at};")


def _one_part(printer: EmitterContext, sums: list[int], run: Callable[[], None]) -> None:
    _declare(printer, sums, "part_a")
    printer.prefixes = dict.fromkeys(sums, "part_")
    run()
    printer.prefixes = {}
    with _each(printer):
        for position in sums:
            printer.line(f"a{position}{printer.slot} = a{position}{printer.slot} + part_a{position}{printer.slot};")


def emit_rows_in_parts(printer: EmitterContext, loop: int, body: Callable[[], None], shared: bool) -> None:
    """Emit the only outer loop of a kernel whose rows are added up column by column (schedule/column_sums.py). Threads
    share the parts; each has sums of its own in memory, which begin as zeros."""
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


def _register(printer: EmitterContext, position: int) -> str:
    kind = KIND[printer.dtype(printer.kernel.values[position].args[1].position)]
    return (VECTOR if printer.wide(position) else SCALAR)[kind]


def _declare(printer: EmitterContext, sums: list[int], name: str) -> None:
    """Declare accumulators of 0."""
    for position in sums:
        if printer.columns is None:
            zero = "splat(0.0f)" if printer.wide(position) else "0.0f"
            printer.line(f"{_register(printer, position)} {name}{position} = {zero};")
        else:
            printer.line(f"{_register(printer, position)} {name}{position}[{printer.width}];")
    if printer.columns is not None:
        with _each(printer):
            for position in sums:
                printer.line(f"{name}{position}[b] = splat(0.0f);")


def _each(printer: EmitterContext) -> AbstractContextManager[None]:
    if printer.columns is None:
        return printer.block("")
    printer.slot = "[b]"
    printer.line(f"#pragma GCC unroll {printer.width}")
    return printer.block(f"for (int b = 0; b < {printer.width}; ++b)")


def is_float_sum(kernel: Kernel, position: int) -> bool:
    value = kernel.values[position]
    return value.args[0] == "sum" and KIND[kernel.values[value.args[1].position].dtype] == "f32"
