"""Decides which reductions along columns are printed in blocks: lanes run across neighbouring columns, and either a
block of several vectors goes down the rows together, or a few rows at a time are added to a row of accumulators in the
first-level cache, so that memory is read in long pieces. columns.py prints the text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from stator.inductor.codegen.kernel import Kernel
from stator.inductor.loops.vocabulary import HEAVY
from stator.shapes.expr import Expr

from .phases import PhasePlan
from .types import KIND, LANES
from .vectorize import LoopOrder

_WIDEST = 8  # vectors that go down the rows together
_ACCUMULATORS = 16  # accumulators of a block that still fit in registers
_ENOUGH = 8  # blocks that give every thread work
_PARTS = 16  # parts of the rows: a fixed number, so that the result does not depend on the thread count
_MIN_ROWS = 16  # rows of a part
_MAX_PARTIAL = 4096  # columns whose partial sums fit on the stack for every part
_CACHED = 16384  # bytes of accumulators that stay in the first-level cache beside the rows
_WIDE_ROWS = 8  # vectors of a row that is longer than a block
_NUMBERS = ("f32", "f64", "i32", "i64")
_MEMORY_ROWS = 8  # rows that are read side by side, of all operands together
_STORED_BYTES = 1024  # of shorter rows that are stored as well, several side by side take longer than blocks


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """width: vectors in a block. split: the inner loop whose iterations are divided into `parts`, or None. rows: the
    number of rows that are added to accumulators in memory together, or 0 for blocks that go down all rows."""

    width: int
    split: int | None = None
    parts: int = 1
    rows: int = 0


def plan_columns(kernel: Kernel, order: LoopOrder, plan: PhasePlan, parallel: bool) -> ColumnPlan | None:
    """None if the kernel is no such reduction, or gains nothing. parallel: there is enough work for several threads."""
    if order.vector is None or order.tile is not None or not order.inner or order.outer[-1:] != (order.vector,):
        return None
    if len(plan.phases) != 1 or plan.phases[0].keeps or kernel.scans:
        return None
    bit = 1 << order.vector
    reduces = [kernel.values[position] for position in plan.phases[0].reduces]
    if not all(value.loops & bit for value in reduces) or not reduces:
        return None
    positions = sum(value.args[0].startswith("arg") for value in reduces)
    size = kernel.typical[order.vector]
    vectors = math.ceil(size / LANES)
    width = (
        max(1, min(_WIDEST, _ACCUMULATORS // (len(reduces) + positions), vectors))
        if _is_contiguous(kernel, order, plan)
        else 1
    )
    others = math.prod(kernel.typical[loop] for loop in order.outer[:-1])
    rows = _rows_together(kernel, order, plan) if parallel and vectors >= _WIDE_ROWS and not positions else 0
    if rows and (split := _split(kernel, order, [value.dtype for value in reduces], others, size)) is not None:
        return ColumnPlan(width, *split, rows)
    if rows and others >= _ENOUGH:
        return ColumnPlan(width, rows=rows)
    if parallel and others * vectors // width < _ENOUGH:
        split = None if positions else _split(kernel, order, [value.dtype for value in reduces], others, size)
        if split is not None:
            return ColumnPlan(width, *split)
        width = max(1, min(width, others * vectors // _ENOUGH))
    width = max((w for w in range(1, width + 1) if vectors % w == 0 and 2 * w > width), default=width)
    return ColumnPlan(width) if width > 1 else None


def _rows_together(kernel: Kernel, order: LoopOrder, plan: PhasePlan) -> int:
    """The number of rows that are added to accumulators in memory together; 0 where blocks go down the rows: values of
    columns and of rows are computed again for each block of rows."""
    assert order.vector is not None
    columns, last = kernel.sizes[order.vector], order.inner[-1]
    reduces = [kernel.values[position] for position in plan.phases[0].reduces]
    again = [kernel.values[at] for at in (*plan.outside, *plan.phases[0].values) if not kernel.values[at].phase]
    if isinstance(columns, Expr) or not _is_contiguous(kernel, order, plan):
        return 0
    if any(v.name in ("indirect", "random") or (v.name in HEAVY and not v.loops & (1 << last)) for v in again):
        return 0
    if not all(KIND[value.dtype] in _NUMBERS for value in reduces):
        return 0
    if 2 * columns * sum(value.dtype.itemsize for value in reduces) > _CACHED or kernel.typical[last] < _MIN_ROWS:
        return 0
    for store in plan.phases[0].stores:
        width = kernel.typical[order.vector] * kernel.values[store.value].dtype.itemsize
        if store.mode is not None or store.mask is not None or kernel.step(store.index, order.vector) != 1:
            return 0
        if width < _STORED_BYTES:
            return 0
    loads = sum(v.name == "load" and bool(v.loops & (1 << last)) for v in again)
    return max(2, _MEMORY_ROWS // max(1, loads))


def scans_columns(kernel: Kernel, order: LoopOrder, plan: PhasePlan) -> bool:
    """True for scans alone, with lanes across neighbouring columns. Values of whole columns must be cheap, because each
    row computes them again."""
    if order.vector is None or not order.inner or order.outer[-1:] != (order.vector,) or len(plan.phases) != 1:
        return False
    phase, bit = plan.phases[0], 1 << order.vector
    inside = [kernel.values[position] for position in phase.values]
    if phase.reduces or plan.outside_stores or not any(v.name == "scan" and v.loops & bit for v in inside):
        return False
    dear = [kernel.values[at] for at in plan.outside if kernel.values[at].loops & bit]
    if any(value.name in HEAVY or value.name == "indirect" for value in dear):
        return False
    return _is_contiguous(kernel, order, plan)


def _is_contiguous(kernel: Kernel, order: LoopOrder, plan: PhasePlan) -> bool:
    """True if the rows' loads along the lanes are contiguous. Blocks of columns further apart gain nothing."""
    assert order.vector is not None
    loads = [value for value in map(kernel.values.__getitem__, plan.phases[0].values) if value.name == "load"]
    return all(kernel.step(value.args[1], order.vector) in (0, 1) for value in loads)


def _split(
    kernel: Kernel, order: LoopOrder, dtypes: list[torch.dtype], others: int, size: int
) -> tuple[int, int] | None:
    """The longest inner loop and its number of parts; None where a part is not worth a thread."""
    assert order.vector is not None
    longest = max(order.inner, key=lambda loop: kernel.typical[loop])
    parts = min(_PARTS, kernel.typical[longest] // _MIN_ROWS)
    if isinstance(kernel.sizes[order.vector], Expr):
        return None  # the parts' results may not fit on the stack
    plain = all(KIND[dtype] in _NUMBERS for dtype in dtypes)
    random = any(value.name == "random" for value in kernel.values)
    if others > 1 or parts < 2 or not plain or random or size * len(dtypes) > _MAX_PARTIAL:
        return None
    return longest, parts
