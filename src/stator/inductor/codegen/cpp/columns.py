"""Reductions along columns: lanes run across neighbouring columns, and the loops reduced over step from row to row.

A block of several vectors goes down the rows together, so that memory is read in long pieces; where there are few
columns, rows are shared between threads. Which kernels are done so, and their text; what they compute is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .kernel import Kernel
from .partial_sums import in_parts
from .phases import Plan
from .types import KIND, SCALAR, VECTOR, identity
from .vectorize import LoopOrder

if TYPE_CHECKING:
    from .emit import Emitter

_WIDEST = 8  # vectors that go down the rows together
_ACCUMULATORS = 16  # of a block, so that they stay in registers
_ENOUGH = 8  # blocks that are enough to share between threads
_PARTS = 16  # that rows are split into: a fixed number, so that the result does not depend on the thread count
_MIN_ROWS = 16  # of a part
_MAX_PARTIAL = 4096  # columns whose partial sums are kept for each part, on the stack
_LANES = 16  # what the estimates assume; the text itself works for any


@dataclass(frozen=True, slots=True)
class Columns:
    """width: vectors in a block. split: the inner loop whose iterations are divided into `parts`, or None."""

    width: int
    split: int | None = None
    parts: int = 1


def plan_columns(kernel: Kernel, order: LoopOrder, plan: Plan, parallel: bool) -> Columns | None:
    """None: not such a reduction, or nothing to gain. parallel: is there enough work for several threads?"""
    if order.vector is None or order.tile is not None or not order.inner or order.outer[-1:] != (order.vector,):
        return None
    if len(plan.phases) != 1 or plan.phases[0].keeps:
        return None
    bit = 1 << order.vector
    reduces = [kernel.values[position] for position in plan.phases[0].reduces]
    if not reduces or any(value.args[0].startswith("arg") or not value.loops & bit for value in reduces):
        return None
    size = kernel.sizes[order.vector]
    vectors = math.ceil(size / _LANES)
    width = max(1, min(_WIDEST, _ACCUMULATORS // len(reduces), vectors))
    others = math.prod(kernel.sizes[loop] for loop in order.outer[:-1])
    if parallel and others * vectors // width < _ENOUGH:
        split = _split(kernel, order, [value.dtype for value in reduces], others, size)
        if split is not None:
            return Columns(width, *split)
        width = max(1, min(width, others * vectors // _ENOUGH))
    width = max((w for w in range(1, width + 1) if vectors % w == 0 and 2 * w > width), default=width)
    return Columns(width) if width > 1 else None


def _split(
    kernel: Kernel, order: LoopOrder, dtypes: list[torch.dtype], others: int, size: int
) -> tuple[int, int] | None:
    """The longest inner loop and the number of parts, where a part is worth a thread."""
    longest = max(order.inner, key=lambda loop: kernel.sizes[loop])
    parts = min(_PARTS, kernel.sizes[longest] // _MIN_ROWS)
    plain = all(KIND[dtype] in ("f32", "f64", "i32", "i64") for dtype in dtypes)
    random = any(value.name == "random" for value in kernel.values)
    if others > 1 or parts < 2 or not plain or random or size * len(dtypes) > _MAX_PARTIAL:
        return None
    return longest, parts


def emit_columns(emitter: Emitter, columns: Columns) -> None:
    """Everything inside of the loop that lanes run along, that loop included."""
    if columns.split is None:
        _over_blocks(emitter, columns.width, lambda width: _block(emitter, width))
    else:
        _in_parts(emitter, columns, columns.split)


def _over_blocks(emitter: Emitter, width: int, body: Callable[[int], None], shared: bool = True) -> None:
    """`body(vectors)` for all columns: whole blocks, vectors that are left, and the rest of a vector."""
    order = emitter.order
    assert order.vector is not None
    name, size = f"{emitter.kernel.loops[order.vector].name}b", emitter.kernel.sizes[order.vector]
    shared = shared and emitter.parallel_at == len(order.outer) - 1
    if shared:
        emitter.line("#pragma omp for schedule(static) nowait")
    step = f"{width} * LANES"
    with emitter.block(f"for (int64_t {name} = 0; {name} <= {size} - {step}; {name} += {step})"):
        body(width)
    if size % (width * _LANES) == 0:
        return
    if width > 1:
        if shared:
            emitter.line("#pragma omp for schedule(static) nowait")
        start = f"{size} / ({step}) * ({step})"
        with emitter.block(f"for (int64_t {name} = {start}; {name} <= {size} - LANES; {name} += LANES)"):
            body(1)
    if size % _LANES:
        if shared:
            emitter.line("#pragma omp single nowait")
        with emitter.block(f"if (constexpr int n = {size} % LANES)"):
            emitter.line(f"const int64_t {name} = {size} / LANES * LANES;")
            emitter.lanes = "n"
            body(1)
            emitter.lanes = "LANES"


def _block(emitter: Emitter, width: int) -> None:
    """Columns of a block from the first row to the last, and what becomes of the results."""
    _down_the_rows(emitter, width)
    with _vectors(emitter, width):
        _per_column_values(emitter)
        for position in emitter.plan.phases[0].reduces:
            emitter._complete(position)
        _finish(emitter)


def _finish(emitter: Emitter) -> None:
    emitter.slot = ""
    stores = list(emitter.plan.outside_stores)
    emitter._after_reductions(0, stores)
    emitter._after_reductions(1, stores)


def _vectors(emitter: Emitter, width: int) -> AbstractContextManager[None]:
    """A loop over the vectors of a block; inside, the loop variable of the columns has its usual name."""
    assert emitter.order.vector is not None
    name = emitter.kernel.loops[emitter.order.vector].name
    emitter.slot = "[b]"
    emitter.line(f"#pragma GCC unroll {width}")
    return emitter.block(f"for (int b = 0; b < {width}; ++b)", f"const int64_t {name} = {name}b + b * LANES;")


def _per_column(emitter: Emitter) -> list[int]:
    """Values that vary with the columns but not with the rows."""
    plan, place = emitter.plan, len(emitter.order.outer)
    return [position for position in plan.outside if emitter._place(position) == place]


def _per_column_values(emitter: Emitter) -> None:
    for position in _per_column(emitter):
        emitter._define(position)


def _needed_by_rows(emitter: Emitter) -> list[int]:
    """Those of them that the rows' values are computed from."""
    kernel, phase = emitter.kernel, emitter.plan.phases[0]
    needed = {position for value in phase.values for position in kernel.operands(kernel.values[value].args)}
    needed |= {kernel.values[position].args[1].position for position in phase.reduces}
    needed |= {store.value for store in phase.stores}
    return [p for p in _per_column(emitter) if p in needed and kernel.values[p].name != "indirect"]


def _down_the_rows(emitter: Emitter, width: int) -> None:
    """Declare the accumulators of a block and run over all rows (or those of a part)."""
    kernel, phase, inner = emitter.kernel, emitter.plan.phases[0], emitter.order.inner
    emitter.width = width
    held = _needed_by_rows(emitter)
    for position in held:
        emitter.line(f"{VECTOR[KIND[emitter.dtype(position)]]} held{position}[{width}];")
    for position in phase.reduces:
        emitter.line(f"{VECTOR[KIND[emitter.dtype(kernel.values[position].args[1].position)]]} a{position}[{width}];")
    with _vectors(emitter, width):
        if held:
            _per_column_values(emitter)
        for position in held:
            emitter.line(f"held{position}[b] = {emitter.operand(position, True)};")
        for position in phase.reduces:
            value = kernel.values[position]
            neutral = identity(value.args[0], emitter.dtype(value.args[1].position))
            emitter.line(f"a{position}[b] = splat({neutral});")

    def rows(depth: int) -> None:
        for position in phase.values:
            if not emitter._is_vector(position) and emitter._inner_place(position, phase) == depth:
                emitter._define(position)
        if depth < len(inner):
            in_parts(emitter, depth, phase, lambda: emitter._loop(inner[depth], lambda: rows(depth + 1)))
            return
        with _vectors(emitter, width):
            for position in held:
                emitter.line(f"const {VECTOR[KIND[emitter.dtype(position)]]} t{position} = held{position}[b];")
            for position in phase.values:
                if emitter._is_vector(position):
                    emitter._define(position)
            for position in phase.reduces:
                emitter._accumulate(position)
            for store in phase.stores:
                emitter._store(store)

    rows(0)


def _in_parts(emitter: Emitter, columns: Columns, split: int) -> None:
    """Rows in parts, shared between threads, and then the sums of the parts' results."""
    kernel, reduces = emitter.kernel, emitter.plan.phases[0].reduces
    assert emitter.order.vector is not None
    size, rows = kernel.sizes[emitter.order.vector], kernel.sizes[split]
    chunk = math.ceil(rows / columns.parts)
    parts = math.ceil(rows / chunk)
    name = f"{kernel.loops[emitter.order.vector].name}b"
    for position in reduces:
        kind = KIND[emitter.dtype(kernel.values[position].args[1].position)]
        emitter.line(f"alignas(64) {SCALAR[kind]} part{position}[{parts}][{math.ceil(size / _LANES) * _LANES}];")
    emitter.line(f"#pragma omp parallel for schedule(static) num_threads(threads_for({emitter._work()}ll))")
    with emitter.block(f"for (int64_t part = 0; part < {parts}; ++part)"):
        emitter.line(f"const int64_t begin = part * {chunk};")
        emitter.line(f"const int64_t end = begin + {chunk} < {rows} ? begin + {chunk} : {rows};")

        def one_part(width: int) -> None:
            emitter.bounds = (split, "begin", "end")
            _down_the_rows(emitter, width)
            emitter.bounds = None
            with _vectors(emitter, width):
                for position in reduces:
                    emitter.line(f"store(&part{position}[part][{name} + b * LANES], a{position}[b]);")

        _over_blocks(emitter, columns.width, one_part, shared=False)

    def combine(width: int) -> None:
        with _vectors(emitter, width):
            _per_column_values(emitter)
            for position in reduces:
                value = kernel.values[position]
                kind = KIND[emitter.dtype(value.args[1].position)]
                at = f"[{name} + b * LANES]"
                emitter.line(f"{VECTOR[kind]} a{position} = load((const {SCALAR[kind]} *)&part{position}[0]{at});")
                emitter.line(
                    f"for (int part = 1; part < {parts}; ++part) a{position} = "
                    f"{emitter.combining(value.args[0])}(a{position}, "
                    f"load((const {SCALAR[kind]} *)&part{position}[part]{at}));"
                )
            emitter.slot = ""
            for position in reduces:
                emitter._complete(position)
            _finish(emitter)

    _over_blocks(emitter, 1, combine, shared=False)
