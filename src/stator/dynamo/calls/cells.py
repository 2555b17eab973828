"""Cell objects as values. Behind a graph break inside a comprehension that 3.12 has inlined they come in as arguments:
the cell of the outer variable of the same name waits on the stack meanwhile."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from ..guard import GuardKind
from ..source import AttrSource, FunctionSource, ItemSource, Source
from ..values.base import Lazy, Value, unsupported
from ..values.cells import CellValue
from ..wrapping import wraps

if TYPE_CHECKING:
    from ..tracer import Tracer


@wraps(types.CellType)
def _cell(tracer: Tracer, obj: types.CellType, source: Source | None) -> Value:
    if source is None:
        raise unsupported("unguardable", "a cell that is a variable's and a value at once")
    known = tracer.real_cells.get(id(obj))
    if known is not None:
        tracer.guard(source, GuardKind.SAME, _place(tracer, known))
        return known
    tracer.guard(source, GuardKind.TYPE, type(obj))
    for other in tracer.real_cells.values():
        tracer.guard(source, GuardKind.DISTINCT, _place(tracer, other))
    try:
        content: Value | None = Lazy(obj.cell_contents, AttrSource(source, "cell_contents"))
    except ValueError:
        tracer.guard(source, GuardKind.PREDICATE, _is_empty)
        content = None
    made = tracer.real_cells[id(obj)] = CellValue(content, source, obj)
    return made


def _place(tracer: Tracer, cell: CellValue) -> Source:
    """Where a cell is found: of the frame's free variables, in the closure of its function."""
    if cell.source is not None:
        return cell.source
    closure = tracer.function.__closure__ or ()
    index = next((at for at, one in enumerate(closure) if one is cell.cell), None)
    if index is None:
        raise unsupported("unguardable", "a cell that is a variable's and a value at once")
    return ItemSource(AttrSource(FunctionSource(), "__closure__"), index)


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (reading it is the question)
    except ValueError:
        return True
    return False
