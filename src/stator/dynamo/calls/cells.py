"""Cell objects as values. Behind a graph break inside a comprehension that 3.12 has inlined they come in as arguments:
the cell of the outer variable of the same name waits on the stack meanwhile."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from ..guard import GuardKind
from ..source import AttrSource, Source
from ..values.base import Lazy, Value, unsupported
from ..values.cells import CellValue
from ..wrapping import wraps

if TYPE_CHECKING:
    from ..tracer import Tracer


@wraps(types.CellType)
def _cell(tracer: Tracer, obj: types.CellType, source: Source | None) -> Value:
    if source is None or id(obj) in tracer.real_cells:
        raise unsupported("unguardable", "a cell that is a variable's and a value at once")
    tracer.guard(source, GuardKind.TYPE, type(obj))
    try:
        content: Value | None = Lazy(obj.cell_contents, AttrSource(source, "cell_contents"))
    except ValueError:
        tracer.guard(source, GuardKind.PREDICATE, _is_empty)
        content = None
    made = tracer.real_cells[id(obj)] = CellValue(content, source, obj)
    return made


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (reading it is the question)
    except ValueError:
        return True
    return False
