"""Long sums as sums of partial sums: their rounding error grows with the length of a part and the number of parts, not
with the number of terms. Where parts begin, and their text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .kernel import Kernel
from .phases import Phase
from .types import KIND, SCALAR, VECTOR
from .vectorize import LoopOrder

if TYPE_CHECKING:
    from .emit import Emitter

_LONG = 256  # terms that one accumulator may take up one after the other
_PART = 128
_LANES = 16


def part_depth(kernel: Kernel, order: LoopOrder) -> int | None:
    """The inner loop, by its place, each run (or piece of a run) of which makes partial sums; None for short sums."""
    trips = [math.ceil(kernel.sizes[at] / (_LANES if at == order.vector else 1)) for at in order.inner]
    if math.prod(trips) <= _LONG:
        return None
    length = 1
    for depth in range(len(trips) - 1, -1, -1):
        length *= trips[depth]
        if length >= _PART // 4:
            return depth
    return 0


def in_parts(emitter: Emitter, depth: int, phase: Phase, run: Callable[[], None]) -> None:
    """Emit the inner loop at `depth` by `run`; its sums go to partial accumulators, which are added up after it."""
    sums = [position for position in phase.reduces if _is_sum(emitter, position)]
    if depth != emitter.part_depth or not sums:
        run()
        return
    loop = emitter.order.inner[depth]
    size, name = emitter.kernel.sizes[loop], emitter.kernel.loops[loop].name
    step = _PART * (_LANES if loop == emitter.order.vector else 1)
    if size <= 2 * step:
        with emitter.block(""):
            _one_part(emitter, sums, run)
        return
    before = emitter.bounds
    first, last = before[1:] if before is not None and before[0] == loop else ("0", str(size))
    begin, end = f"{name}_begin", f"{name}_end"
    with emitter.block(f"for (int64_t {begin} = {first}; {begin} < {last}; {begin} += {step})"):
        emitter.line(f"const int64_t {end} = {begin} + {step} < {last} ? {begin} + {step} : {last};")
        emitter.bounds = (loop, begin, end)
        _one_part(emitter, sums, run)
        emitter.bounds = before


def _one_part(emitter: Emitter, sums: list[int], run: Callable[[], None]) -> None:
    for position in sums:
        kind = KIND[emitter.dtype(emitter.kernel.values[position].args[1].position)]
        register = (VECTOR if emitter.wide(position) else SCALAR)[kind]
        if emitter.columns is None:
            zero = "splat(0.0f)" if emitter.wide(position) else "0.0f"
            emitter.line(f"{register} part_a{position} = {zero};")
        else:
            emitter.line(f"{register} part_a{position}[{emitter.width}];")
    if emitter.columns is not None:
        with _each(emitter):
            for position in sums:
                emitter.line(f"part_a{position}[b] = splat(0.0f);")
    emitter.in_part = frozenset(sums)
    run()
    emitter.in_part = frozenset()
    with _each(emitter):
        for position in sums:
            emitter.line(f"a{position}{emitter.slot} = a{position}{emitter.slot} + part_a{position}{emitter.slot};")


def _each(emitter: Emitter) -> AbstractContextManager[None]:
    if emitter.columns is None:
        return emitter.block("")
    emitter.slot = "[b]"
    emitter.line(f"#pragma GCC unroll {emitter.width}")
    return emitter.block(f"for (int b = 0; b < {emitter.width}; ++b)")


def _is_sum(emitter: Emitter, position: int) -> bool:
    value = emitter.kernel.values[position]
    return value.args[0] == "sum" and KIND[emitter.dtype(value.args[1].position)] == "f32"
