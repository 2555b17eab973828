"""Long sums as sums of partial sums. Their rounding error grows with the length of a part and the number of parts, not
with the number of terms. Decides where parts begin, and prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from stator.inductor.codegen.kernel import Kernel
from stator.shapes.expr import Expr

from .column_plan import ColumnPlan
from .phases import Phase
from .types import KIND, SCALAR, VECTOR
from .vectorize import LoopOrder

_LONG = 256  # the most terms that one accumulator takes up one after the other
_PART = 128
_LANES = 16


class PartialSumContext(Protocol):
    """The methods of a kernel's emitter (emit.Emitter) that print partial sums."""

    kernel: Kernel
    order: LoopOrder
    columns: ColumnPlan | None
    part_depth: int | None
    in_part: frozenset[int]
    bounds: tuple[int, str, str] | None
    slot: str
    width: int

    def line(self, text: str) -> None: ...

    def block(self, head: str, *first: str) -> AbstractContextManager[None]: ...

    def dtype(self, position: int) -> torch.dtype: ...

    def wide(self, position: int) -> bool: ...


def part_depth(kernel: Kernel, order: LoopOrder) -> int | None:
    """The depth of the inner loop with runs (or pieces of runs) that make partial sums; None for short sums."""
    trips = [_trips(kernel, at, order) for at in order.inner]
    if math.prod(trips) <= _LONG:
        return None
    length = 1
    for depth in range(len(trips) - 1, -1, -1):
        length *= trips[depth]
        if length >= _PART // 4:
            return depth
    return 0


def _trips(kernel: Kernel, loop: int, order: LoopOrder) -> int:
    """The iterations of a loop. A loop of symbolic size may be long."""
    if isinstance(kernel.sizes[loop], Expr):
        return max(kernel.typical[loop], 2 * _LONG)
    return math.ceil(kernel.typical[loop] / (_LANES if loop == order.vector else 1))


def emit_in_parts(printer: PartialSumContext, depth: int, phase: Phase, run: Callable[[], None]) -> None:
    """Emit the inner loop at `depth` by `run`. Its sums go to partial accumulators, which are added up after it."""
    sums = [position for position in phase.reduces if _is_sum(printer, position)]
    if depth != printer.part_depth or not sums:
        run()
        return
    loop = printer.order.inner[depth]
    size, name = printer.kernel.sizes[loop], printer.kernel.loops[loop].name
    step = _PART * (_LANES if loop == printer.order.vector else 1)
    if not isinstance(size, Expr) and size <= 2 * step:
        with printer.block(""):
            _one_part(printer, sums, run)
        return
    before = printer.bounds
    first, last = before[1:] if before is not None and before[0] == loop else ("0", printer.kernel.text(size))
    begin, end = f"{name}_begin", f"{name}_end"
    with printer.block(f"for (int64_t {begin} = {first}; {begin} < {last}; {begin} += {step})"):
        printer.line(f"const int64_t {end} = {begin} + {step} < {last} ? {begin} + {step} : {last};")
        printer.bounds = (loop, begin, end)
        _one_part(printer, sums, run)
        printer.bounds = before


def _one_part(printer: PartialSumContext, sums: list[int], run: Callable[[], None]) -> None:
    for position in sums:
        kind = KIND[printer.dtype(printer.kernel.values[position].args[1].position)]
        register = (VECTOR if printer.wide(position) else SCALAR)[kind]
        if printer.columns is None:
            zero = "splat(0.0f)" if printer.wide(position) else "0.0f"
            printer.line(f"{register} part_a{position} = {zero};")
        else:
            printer.line(f"{register} part_a{position}[{printer.width}];")
    if printer.columns is not None:
        with _each(printer):
            for position in sums:
                printer.line(f"part_a{position}[b] = splat(0.0f);")
    printer.in_part = frozenset(sums)
    run()
    printer.in_part = frozenset()
    with _each(printer):
        for position in sums:
            printer.line(f"a{position}{printer.slot} = a{position}{printer.slot} + part_a{position}{printer.slot};")


def _each(printer: PartialSumContext) -> AbstractContextManager[None]:
    if printer.columns is None:
        return printer.block("")
    printer.slot = "[b]"
    printer.line(f"#pragma GCC unroll {printer.width}")
    return printer.block(f"for (int b = 0; b < {printer.width}; ++b)")


def _is_sum(printer: PartialSumContext, position: int) -> bool:
    value = printer.kernel.values[position]
    return value.args[0] == "sum" and KIND[printer.dtype(value.args[1].position)] == "f32"
