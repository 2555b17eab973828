"""Maxima and minima of long rows in several accumulators, since a step of one accumulator waits for its last step.
Sums stay in one accumulator here, because their bits depend on the order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from stator.inductor.codegen.kernel import Kernel

from .column_plan import ColumnPlan
from .phases import Phase
from .types import KIND, VECTOR
from .vectorize import LoopOrder

_COUNT = 4
_LEAST = 128  # elements of a row: two steps of 16 lanes for each accumulator


class AccumulatorContext(Protocol):
    """The members of a kernel's emitter (emit.Emitter) that print loops with several accumulators."""

    kernel: Kernel
    order: LoopOrder
    columns: ColumnPlan | None
    in_part: frozenset[int]
    bounds: tuple[int, str, str] | None
    slot: str

    def line(self, text: str) -> None: ...
    def block(self, head: str, *first: str) -> AbstractContextManager[None]: ...
    def combining(self, kind: str) -> str: ...
    def position_register(self, position: int) -> str: ...


def emit_with_several(
    printer: AccumulatorContext, depth: int, phase: Phase, run: Callable[[], None], body: Callable[[], None]
) -> None:
    """Emit the inner loop at `depth` by `run`. `body` prints one of its iterations. A long innermost loop of maxima and
    minima along the lanes begins with steps of several vectors."""
    kernel, inner = printer.kernel, printer.order.inner
    loop = inner[depth]
    kinds = {kernel.values[position].args[0] for position in phase.reduces}
    suits = bool(kinds) and kinds <= {"max", "min", "argmax", "argmin"} and not phase.keeps and printer.columns is None
    if not suits or depth != len(inner) - 1 or loop != printer.order.vector or kernel.typical[loop] < _LEAST:
        run()
        return
    name, before = kernel.loops[loop].name, printer.bounds
    first, last = before[1:] if before is not None and before[0] == loop else ("0", kernel.size(loop))
    step, rest = f"({_COUNT} * LANES)", f"{name}_rest"
    with printer.block(""):
        for position in phase.reduces:
            register = VECTOR[KIND[kernel.values[kernel.values[position].args[1].position].dtype]]
            printer.line(f"{register} part_a{position}[] = {{{', '.join([f'a{position}'] * _COUNT)}}};")
            if kernel.values[position].args[0].startswith("arg"):
                register = printer.position_register(position)
                printer.line(f"{register} part_p{position}[] = {{{', '.join([f'p{position}'] * _COUNT)}}};")
        printer.line(f"const int64_t {rest} = {first} + ({last} - {first}) / {step} * {step};")
        with printer.block(f"for (int64_t {name}_block = {first}; {name}_block < {rest}; {name}_block += {step})"):
            printer.line(f"#pragma GCC unroll {_COUNT}")
            with printer.block(
                f"for (int b = 0; b < {_COUNT}; ++b)", f"const int64_t {name} = {name}_block + b * LANES;"
            ):
                printer.in_part, printer.slot = frozenset(phase.reduces), "[b]"
                body()
                printer.in_part, printer.slot = frozenset(), ""
        for position in phase.reduces:
            kind = kernel.values[position].args[0]
            for at in range(_COUNT):
                part = f"part_a{position}[{at}]"
                if kind.startswith("arg"):
                    printer.line(f"merge_{kind}(a{position}, p{position}, {part}, part_p{position}[{at}]);")
                else:
                    printer.line(f"a{position} = {printer.combining(kind)}(a{position}, {part});")
        printer.bounds = (loop, rest, last)
        run()
        printer.bounds = before
