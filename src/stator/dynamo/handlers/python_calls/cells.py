"""Cell objects as values. On CPython 3.12 an inlined comprehension keeps the cell of an outer variable on the stack;
behind a graph break inside of it, the cell is an argument of the resumed function."""

from __future__ import annotations

import types

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, Source
from stator.dynamo.interpreter.wrapping import wraps
from stator.dynamo.values.base import CaptureContext, Lazy, Value, unsupported
from stator.dynamo.values.scopes import CellValue, is_empty


@wraps(types.CellType)
def _cell(context: CaptureContext, obj: types.CellType, source: Source | None) -> Value:
    if source is None:
        raise unsupported("unguardable", "a cell that is no argument of the frame")
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
