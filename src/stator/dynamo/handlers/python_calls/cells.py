"""Cell objects as values. Behind a graph break inside a comprehension that 3.12 has inlined they come in as arguments:
the cell of the outer variable of the same name waits on the stack meanwhile."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, Source
from stator.dynamo.interpreter.wrapping import wraps
from stator.dynamo.values.base import Lazy, Value, unsupported
from stator.dynamo.values.cells import CellValue, is_empty

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


@wraps(types.CellType)
def _cell(context: CaptureContext, obj: types.CellType, source: Source | None) -> Value:
    if source is None:
        raise unsupported("unguardable", "a cell that is a variable's and a value at once")
    known = context.real_cells.get(id(obj))
    if known is not None:
        context.guard(source, GuardKind.SAME, known.place(context))
        return known
    context.guard(source, GuardKind.TYPE, type(obj))
    for other in context.real_cells.values():
        context.guard(source, GuardKind.DISTINCT, other.place(context))
    try:
        content: Value | None = Lazy(obj.cell_contents, AttrSource(source, "cell_contents"))
    except ValueError:
        context.guard(source, GuardKind.PREDICATE, is_empty)
        content = None
    made = context.real_cells[id(obj)] = CellValue(content, source, obj)
    return made
