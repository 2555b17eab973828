"""Prints reductions along columns: blocks of several vectors go down the rows together, or a few rows at a time are
added to accumulators in memory.

Where there are few columns, threads share the rows. column_plan.py decides which kernels are printed this way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

from .column_plan import ColumnPlan
from .column_scans import emit_column_scans
from .emit import Emitter
from .loop_sizes import part_bounds, parts, rest, work
from .partial_sums import PART, emit_in_parts, is_float_sum, pieces
from .types import KIND, LANES, SCALAR, VECTOR, identity


class ColumnEmitter(Emitter):
    """Prints a kernel with an innermost outer loop that may run in blocks of columns."""

    def _columns_printed(self) -> bool:
        if self.scans_columns:
            emit_column_scans(self)
            return True
        if self.columns is None:
            return False
        _emit_columns(self, self.columns)
        return True


def _emit_columns(emitter: Emitter, columns: ColumnPlan) -> None:
    """Print the loop that lanes run along, and everything inside of it."""
    if columns.rows and columns.split is None:
        _accumulators_in_memory(emitter, "total")
        _add_rows(emitter, columns.rows, "total")
        _combine_parts(emitter, "total", 1)
    elif columns.split is None:
        _over_blocks(emitter, columns.width, lambda width: _block(emitter, width))
    else:
        _in_parts(emitter, columns, columns.split)


def _over_blocks(emitter: Emitter, width: int, body: Callable[[int], None], shared: bool = True) -> None:
    """`body(vectors)` for all columns: whole blocks, then single vectors, then the rest of a vector."""
    order = emitter.order
    assert order.vector is not None
    name, size = f"{emitter.kernel.loops[order.vector].name}b", emitter.kernel.size(order.vector)
    shared = shared and emitter.parallel_at == len(order.outer) - 1
    if shared:
        emitter.line("#pragma omp for schedule(static) nowait")
    step = f"{width} * LANES"
    with emitter.block(f"for (int64_t {name} = 0; {name} <= {size} - {step}; {name} += {step})"):
        body(width)
    if emitter.kernel.knowledge.divides(width * LANES, emitter.kernel.sizes[order.vector]):
        return
    if width > 1:
        if shared:
            emitter.line("#pragma omp for schedule(static) nowait")
        start = f"{size} / ({step}) * ({step})"
        with emitter.block(f"for (int64_t {name} = {start}; {name} <= {size} - LANES; {name} += LANES)"):
            body(1)
    if not emitter.kernel.fills_lanes(order.vector):
        if shared:
            emitter.line("#pragma omp single nowait")
        with emitter.block(f"if ({rest(emitter.kernel, order.vector)})"):
            emitter.line(f"const int64_t {name} = {size} / LANES * LANES;")
            emitter.lanes = "n"
            body(1)
            emitter.lanes = "LANES"


def _block(emitter: Emitter, width: int) -> None:
    """The columns of a block from the first row to the last, then the values and stores behind the reductions."""
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
    """A loop over the vectors of a block. Inside, the loop variable of the columns has its usual name."""
    assert emitter.order.vector is not None
    name = emitter.kernel.loops[emitter.order.vector].name
    emitter.slot = "[b]"
    emitter.line(f"#pragma GCC unroll {width}")
    return emitter.block(f"for (int b = 0; b < {width}; ++b)", f"const int64_t {name} = {name}b + b * LANES;")


def _per_column(emitter: Emitter) -> list[int]:
    """Values that vary with the columns but not with the rows, and depend on no reduction."""
    plan, place = emitter.plan, len(emitter.order.outer)
    return [position for position in plan.outside if emitter._place(position) == place]


def _per_column_values(emitter: Emitter) -> None:
    for position in _per_column(emitter):
        emitter._define(position)


def _needed_by_rows(emitter: Emitter) -> list[int]:
    """The per-column values that are operands of the rows' values."""
    kernel, phase = emitter.kernel, emitter.plan.phases[0]
    needed = {position for value in phase.values for position in kernel.operands(kernel.values[value].args)}
    needed |= {kernel.values[position].args[1].position for position in phase.reduces}
    needed |= {store.value for store in phase.stores}
    return [position for position in _per_column(emitter) if position in needed]


def _name(emitter: Emitter, position: int) -> str:
    indirect = emitter.kernel.values[position].name == "indirect"
    return f"indirect{position}" if indirect else emitter.operand(position, True)


def _down_the_rows(emitter: Emitter, width: int) -> None:
    """Declare the accumulators of a block and loop over all rows (or over the rows of a part)."""
    kernel, phase, inner = emitter.kernel, emitter.plan.phases[0], emitter.order.inner
    emitter.width = width
    held = _needed_by_rows(emitter)
    for position in held:
        emitter.line(f"{VECTOR[KIND[emitter.dtype(position)]]} held{position}[{width}];")
    for position in phase.reduces:
        emitter.line(f"{VECTOR[KIND[emitter.dtype(kernel.values[position].args[1].position)]]} a{position}[{width}];")
        if kernel.values[position].args[0].startswith("arg"):
            emitter.line(f"{emitter.position_register(position)} p{position}[{width}];")
    with _vectors(emitter, width):
        if held:
            _per_column_values(emitter)
        for position in held:
            emitter.line(f"held{position}[b] = {_name(emitter, position)};")
        for position in phase.reduces:
            value = kernel.values[position]
            neutral = identity(value.args[0], emitter.dtype(value.args[1].position))
            emitter.line(f"a{position}[b] = splat({neutral});")
            if value.args[0].startswith("arg"):
                emitter.line(f"p{position}[b] = {emitter.element_position(position)};")

    def rows(depth: int) -> None:
        for position in phase.values:
            if not emitter.is_vector(position) and emitter._inner_place(position, phase) == depth:
                emitter._define(position)
        if depth < len(inner):
            emit_in_parts(emitter, depth, phase, lambda: emitter.loop(inner[depth], lambda: rows(depth + 1)))
            return
        with _vectors(emitter, width):
            for position in held:
                kind = VECTOR[KIND[emitter.dtype(position)]]
                emitter.line(f"const {kind} {_name(emitter, position)} = held{position}[b];")
            for position in phase.values:
                if emitter.is_vector(position):
                    emitter._define(position)
            for position in phase.reduces:
                emitter._accumulate(position)
            for store in phase.stores:
                emitter._store(store)

    rows(0)


def _in_parts(emitter: Emitter, columns: ColumnPlan, split: int) -> None:
    """Split the rows into parts, which threads share, and then add up the results of the parts."""
    kernel, reduces = emitter.kernel, emitter.plan.phases[0].reduces
    assert emitter.order.vector is not None
    size = kernel.typical[emitter.order.vector]
    chunk, count = parts(kernel, split, columns.parts, 1)
    name = f"{kernel.loops[emitter.order.vector].name}b"
    for position in reduces:
        emitter.line(f"alignas(64) {_scalar(emitter, position)} part{position}[{count}][{_padded(size)}];")
    emitter.line(f"#pragma omp parallel for schedule(static) num_threads(threads_for({work(kernel)}))")
    with emitter.block(f"for (int64_t part = 0; part < {count}; ++part)"):
        for text in part_bounds(kernel, split, chunk):
            emitter.line(text)

        def one_part(width: int) -> None:
            _down_the_rows(emitter, width)
            with _vectors(emitter, width):
                for position in reduces:
                    emitter.line(f"store(&part{position}[part][{name} + b * LANES], a{position}[b]);")

        emitter.bounds = (split, "begin", "end")
        if columns.rows:
            _accumulators_in_memory(emitter, "sums")
            _add_rows(emitter, columns.rows, "sums")
            for position in reduces:
                emitter.line(f"__builtin_memcpy(part{position}[part], sums{position}, sizeof sums{position});")
        else:
            _over_blocks(emitter, columns.width, one_part, shared=False)
        emitter.bounds = None
    _combine_parts(emitter, "part", count)


def _combine_parts(emitter: Emitter, array: str, count: int) -> None:
    """The values and stores behind the reductions, whose results are in rows of memory."""
    kernel, reduces = emitter.kernel, emitter.plan.phases[0].reduces
    assert emitter.order.vector is not None
    name = f"{kernel.loops[emitter.order.vector].name}b"

    def combine(width: int) -> None:
        with _vectors(emitter, width):
            _per_column_values(emitter)
            for position in reduces:
                value = kernel.values[position]
                kind = KIND[emitter.dtype(value.args[1].position)]
                at = f"[{name} + b * LANES]"
                first = f"{array}{position}{'[0]' if array == 'part' else ''}{at}"
                emitter.line(f"{VECTOR[kind]} a{position} = load((const {SCALAR[kind]} *)&{first});")
                if count > 1:
                    emitter.line(
                        f"for (int part = 1; part < {count}; ++part) a{position} = "
                        f"{emitter.combining(value.args[0])}(a{position}, "
                        f"load((const {SCALAR[kind]} *)&part{position}[part]{at}));"
                    )
            emitter.slot = ""
            for position in reduces:
                emitter._complete(position)
            _finish(emitter)

    _over_blocks(emitter, 1, combine, shared=False)


# ---- a few rows at a time -----------------------------------------------------------------------------------


def _padded(size: int) -> int:
    return math.ceil(size / LANES) * LANES


def _scalar(emitter: Emitter, position: int) -> str:
    return SCALAR[KIND[emitter.dtype(emitter.kernel.values[position].args[1].position)]]


def _at_columns(emitter: Emitter, name: str, position: int) -> str:
    assert emitter.order.vector is not None
    return f"({_scalar(emitter, position)} *)&{name}{position}[{emitter.kernel.loops[emitter.order.vector].name}]"


def _accumulators_in_memory(emitter: Emitter, name: str, positions: list[int] | None = None) -> None:
    """Declare a row of accumulators of each reduction, or of `positions`, with neutral elements."""
    kernel, vector = emitter.kernel, emitter.order.vector
    assert vector is not None
    positions = emitter.plan.phases[0].reduces if positions is None else positions
    for position in positions:
        emitter.line(f"alignas(64) {_scalar(emitter, position)} {name}{position}[{_padded(kernel.typical[vector])}];")
    with emitter.block(_all_columns(emitter)):
        for position in positions:
            value = kernel.values[position]
            neutral = identity(value.args[0], emitter.dtype(value.args[1].position))
            emitter.line(f"store({_at_columns(emitter, name, position)}, splat({neutral}));")


def _all_columns(emitter: Emitter) -> str:
    """The head of a loop over all vectors of a row, the last one of them perhaps beyond its end."""
    assert emitter.order.vector is not None
    name = emitter.kernel.loops[emitter.order.vector].name
    size = _padded(emitter.kernel.typical[emitter.order.vector])
    return f"for (int64_t {name} = 0; {name} < {size}; {name} += LANES)"


def _add_rows(emitter: Emitter, together: int, sums: str) -> None:
    """Combine the rows, or those within the emitter's bounds, with the accumulators in memory. Long float32 sums are
    added up in parts (partial_sums.py)."""
    kernel, phase, inner = emitter.kernel, emitter.plan.phases[0], emitter.order.inner
    last, name = inner[-1], kernel.loops[inner[-1]].name
    partial = {
        position for position in phase.reduces if emitter.part_depth is not None and is_float_sum(kernel, position)
    }

    def rows(depth: int) -> None:
        if depth == len(inner) - 1:
            first, end = "0", kernel.bound(last)
            if emitter.bounds is not None and emitter.bounds[0] == last:
                first, end = emitter.bounds[1:]
            with pieces(emitter, name, first, end, PART) if partial else emitter.block(""):
                if partial:
                    _accumulators_in_memory(emitter, "some", sorted(partial))
                emitter.line(f"int64_t {name}b = {first if not partial else f'{name}_begin'};")
                end = f"{name}_end" if partial else end
                with emitter.block(f"for (; {name}b <= {end} - {together}; {name}b += {together})"):
                    block(together)
                with emitter.block(f"for (; {name}b < {end}; ++{name}b)"):
                    block(1)
                if partial:
                    with emitter.block(_all_columns(emitter)):
                        for position in sorted(partial):
                            target, some = (_at_columns(emitter, array, position) for array in (sums, "some"))
                            emitter.line(f"store({target}, load({target}) + load({some}));")
            return
        scalars(depth)
        emitter.loop(inner[depth], lambda: rows(depth + 1))

    def scalars(depth: int) -> None:
        for position in phase.values:
            if not emitter.is_vector(position) and emitter._inner_place(position, phase) == depth:
                emitter._define(position)

    def block(count: int) -> None:
        assert emitter.order.vector is not None
        emitter._vectors(emitter.order.vector, lambda: vectors(count), shared=False)

    def vectors(count: int) -> None:
        if _needed_by_rows(emitter):
            _per_column_values(emitter)
        for position in phase.reduces:
            array = "some" if position in partial else sums
            kind = VECTOR[KIND[emitter.dtype(kernel.values[position].args[1].position)]]
            emitter.line(f"{kind} a{position} = load({_at_columns(emitter, array, position)});")
        emitter.line(f"#pragma GCC unroll {count}")
        head = f"for (int {name}_step = 0; {name}_step < {count}; ++{name}_step)"
        with emitter.block(head, f"const int64_t {name} = {name}b + {name}_step;"):
            scalars(len(inner) - 1)
            scalars(len(inner))
            for position in phase.values:
                if emitter.is_vector(position):
                    emitter._define(position)
            for position in phase.reduces:
                emitter._accumulate(position)
            for store in phase.stores:
                emitter._store(store)
        for position in phase.reduces:
            array = "some" if position in partial else sums
            emitter.line(f"store({_at_columns(emitter, array, position)}, a{position});")

    rows(0)
