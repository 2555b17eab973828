"""Cell objects as values. Behind a graph break inside a comprehension that 3.12 has inlined they come in as arguments:
the cell of the outer variable of the same name waits on the stack meanwhile."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from ..guard import GuardKind
from ..source import AttrSource, Source
from ..values.base import Lazy, Value, unsupported
from ..values.cells import CellValue, is_empty
from ..wrapping import wraps

if TYPE_CHECKING:
    from ..tracer import Tracer


@wraps(types.CellType)
def _cell(tracer: Tracer, obj: types.CellType, source: Source | None) -> Value:
    if source is None:
        raise unsupported("unguardable", "a cell that is a variable's and a value at once")
    known = tracer.real_cells.get(id(obj))
    if known is not None:
        tracer.guard(source, GuardKind.SAME, known.place(tracer))
        return known
    tracer.guard(source, GuardKind.TYPE, type(obj))
    for other in tracer.real_cells.values():
        tracer.guard(source, GuardKind.DISTINCT, other.place(tracer))
    try:
        content: Value | None = Lazy(obj.cell_contents, AttrSource(source, "cell_contents"))
    except ValueError:
        tracer.guard(source, GuardKind.PREDICATE, is_empty)
        content = None
    made = tracer.real_cells[id(obj)] = CellValue(content, source, obj)
    return made
