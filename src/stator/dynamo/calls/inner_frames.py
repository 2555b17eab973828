"""The rest of a frame behind a graph break calls what goes on with the function that it had called: followed like any
other call of a Python function, only that its closure's cells come as arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..finalizers import check_handed_on
from ..finishing import Way
from ..frame import Frame, follow_rest
from ..native_status import native
from ..recipe import Constant, Recipe
from ..resume import closure_of
from ..source import Source
from ..values.base import Raised, Value, unsupported
from ..values.cells import CellValue
from ..wrapping import wraps

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


class InnerFrameValue(Value):
    """What goes on with a function in the middle."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.source = None
        self.inner = inner

    def python_type(self, tracer: Tracer) -> type:
        return type(self.inner)

    def real(self) -> Any:
        return self.inner

    def describe(self, tracer: Tracer) -> str:
        return "the rest of a function behind a graph break"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.inner._read is not None:
            args = args[1:]  # what an AttributeError is told, whose name and object are not known here
        function = self.inner._target._function
        code = function.__code__
        free = len(closure_of(code))
        cells = tuple(cell for cell in args[:free] if isinstance(cell, CellValue))
        if len(cells) < free:
            raise unsupported("unguardable", "a closure that was made of something else than cells")
        check = check_handed_on(tracer.frames[-1], args[free:])
        try:
            result = follow_rest(tracer, function, cells, args[free:], _way(tracer.frames[-1]))
        except Raised as raised:
            caught = self.inner._caught
            if caught is None or not issubclass(raised.value.python_type(tracer), caught):
                raise
            return tracer.known(native.missed)
        check()
        return result

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return Constant(self.inner)


def _way(around: Frame) -> Way:
    """What is below is on the stack of the frame around already."""
    resumption = around.program.resumption
    assert resumption is not None and resumption.point.finish is not None
    return Way(resumption.point.finish)


if native is not None:

    @wraps(native.Inner)
    def _inner(tracer: Tracer, obj: Any, source: Source | None) -> Value:
        return InnerFrameValue(obj)
