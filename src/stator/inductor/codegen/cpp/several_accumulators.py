"""Sums, maxima and minima of long rows in several accumulators, since a step of one accumulator waits for its last
step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stator.inductor.codegen.kernel import Kernel
from stator.inductor.loops.vocabulary import HEAVY

from .phases import Phase
from .types import KIND, LANES, VECTOR, identity
from .values import EmitterContext

_COUNT = 4
_LEAST = 128  # elements of a row: two steps of 16 lanes for each accumulator
_MOST_OPERATIONS = 8  # of an iteration: more take as long as a step of one accumulator waits
_KINDS = {"sum", "max", "min", "argmax", "argmin"}


def emit_with_several(
    printer: EmitterContext, depth: int, phase: Phase, run: Callable[[], None], body: Callable[[], None]
) -> None:
    """Emit the inner loop at `depth` by `run`. `body` prints one of its iterations. A long innermost loop of reductions
    along the lanes begins with steps of several vectors."""
    kernel, inner = printer.kernel, printer.order.inner
    loop = inner[depth]
    if depth != len(inner) - 1 or loop != printer.order.vector or not _suits(printer, phase, loop):
        run()
        return
    name, bounds, outer = kernel.loops[loop].name, printer.bounds, printer.prefixes
    size = kernel.bound(loop) if kernel.fills_lanes(loop) else kernel.size(loop)
    first, last = bounds[1:] if bounds is not None and bounds[0] == loop else ("0", size)
    step, rest = f"({_COUNT} * LANES)", f"{name}_rest"
    with printer.block(""):
        for position in phase.reduces:
            kind, prefix = kernel.values[position].args[0], outer.get(position, "")
            register = VECTOR[KIND[_dtype(kernel, position)]]
            begin = f"splat({identity('sum', _dtype(kernel, position))})" if kind == "sum" else f"{prefix}a{position}"
            printer.line(f"{register} some_a{position}[] = {{{', '.join([begin] * _COUNT)}}};")
            if kind.startswith("arg"):
                register = printer.position_register(position)
                printer.line(f"{register} some_p{position}[] = {{{', '.join([f'p{position}'] * _COUNT)}}};")
        printer.line(f"const int64_t {rest} = {first} + ({last} - {first}) / {step} * {step};")
        with printer.block(f"for (int64_t {name}_block = {first}; {name}_block < {rest}; {name}_block += {step})"):
            printer.line(f"#pragma GCC unroll {_COUNT}")
            with printer.block(
                f"for (int b = 0; b < {_COUNT}; ++b)", f"const int64_t {name} = {name}_block + b * LANES;"
            ):
                printer.prefixes, printer.slot = dict.fromkeys(phase.reduces, "some_"), "[b]"
                body()
                printer.prefixes, printer.slot = outer, ""
        for position in phase.reduces:
            kind, prefix = kernel.values[position].args[0], outer.get(position, "")
            for at in range(_COUNT):
                part = f"some_a{position}[{at}]"
                if kind.startswith("arg"):
                    printer.line(f"merge_{kind}(a{position}, p{position}, {part}, some_p{position}[{at}]);")
                else:
                    total = f"{prefix}a{position}"
                    printer.line(f"{total} = {printer.combining(kind)}({total}, {part});")
        if bounds is None and kernel.knowledge.divides(_COUNT * LANES, kernel.sizes[loop]):
            return
        printer.bounds = (loop, rest, last)
        run()
        printer.bounds = bounds


def _suits(printer: EmitterContext, phase: Phase, loop: int) -> bool:
    kernel = printer.kernel
    reduces = [kernel.values[position] for position in phase.reduces]
    if not reduces or printer.columns is not None or kernel.typical[loop] < _LEAST:
        return False
    if phase.keeps or phase.stores or not all(value.args[0] in _KINDS for value in reduces):
        return False
    varying = [kernel.values[at] for at in phase.values if kernel.values[at].loops & (1 << loop)]
    operations = [value for value in varying if value.name != "load"]
    return len(operations) <= _MOST_OPERATIONS and not any(value.name in HEAVY for value in operations)


def _dtype(kernel: Kernel, position: int) -> torch.dtype:
    """Of the accumulator of a reduction."""
    return kernel.values[kernel.values[position].args[1].position].dtype
