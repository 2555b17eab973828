"""Generators that existed before the frame, such as one that a loop goes through whose body breaks the graph.

One that waits at a `yield` is followed from there on like one made in the captured code; when the graph ends, it is put
where it has come to, ahead of whatever runs next.
"""

from __future__ import annotations

from types import CellType, CodeType, GeneratorType
from typing import TYPE_CHECKING, Any

from stator.dynamo.graph.finalizers import ends_quietly
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, ConstantSource, ItemSource, ReadSource, Source
from stator.dynamo.host.hook import STATOR_FOLDER, is_skipped
from stator.dynamo.host.native_status import native
from stator.dynamo.ir.prepared_code import prepare_code
from stator.dynamo.ir.reconstruct_ir import Load, Recipe, SetGenerator
from stator.dynamo.ir.resume import closure_of
from stator.dynamo.ir.suspension_points import suspension_points_of
from stator.dynamo.values.base import Lazy, Value, unsupported
from stator.dynamo.values.cells import CellValue, is_empty
from stator.dynamo.values.objects import ObjectValue

from .frame import Frame
from .generators import GeneratorMethod, GeneratorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor

_UNIT, _CODE, _NAMESPACE, _FIRST = range(4)  # what stands where in a generator's contents
_FINISHED = -2
_METHODS = ("__next__", "__iter__", "send", "throw", "close")


class LiveGenerator(ObjectValue):
    """A generator found at `source`. What it holds is read, and relied on, when it is asked for something."""

    __slots__ = ("asked", "code", "generator", "place")

    def __init__(self, obj: Any, source: Source) -> None:
        super().__init__(GeneratorType, obj, source)
        self.asked = False
        self.generator: GeneratorValue | None = None
        self.code: CodeType | None = None
        self.place: int | None = None  # the instruction at which it waited at entry

    # -- following it --
    def followed(self, context: CaptureContext) -> GeneratorValue | None:
        """What goes on with it; None where that cannot be followed."""
        if not self.asked:
            self.asked = True
            self.generator = self._follow(context)
            if self.generator is not None:
                context.live_generators.append(self.generator)
        return self.generator

    def _follow(self, context: CaptureContext) -> GeneratorValue | None:
        contents = native.generator_contents(self.obj)
        unit, code = contents[_UNIT], contents[_CODE]
        source = ReadSource(native.generator_contents, (self.source,))  # type: ignore[arg-type]
        if unit == _FINISHED:
            context.guard(ItemSource(source, _UNIT), GuardKind.EQUALS, unit)
            return self._finished(context)
        places = None if code is None else suspension_points_of(code)
        place = None if places is None else places.at(unit)
        if places is None or place is None or _is_kept_away(places.user_code):
            return None
        context.guard(ItemSource(source, _UNIT), GuardKind.EQUALS, unit)
        context.guard(ItemSource(source, _CODE), GuardKind.IS, code)
        context.guard(source, GuardKind.LENGTH, len(contents))
        self.code, self.place = code, place
        return self._made(context, places.user_code, contents, source)

    def _finished(self, context: CaptureContext) -> GeneratorValue:
        scope = context.frames[-1].globals
        empty = _nothing.__code__
        made = GeneratorValue(
            Frame(context, prepare_code(empty), scope, {}, (), empty.co_qualname), empty.co_name, self
        )
        made.started, made.returned = True, context.constant(None)
        return made

    def _made(
        self, context: CaptureContext, code: CodeType, contents: tuple[Any, ...], source: Source
    ) -> GeneratorValue:
        names = (*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames))
        names += code.co_freevars
        variables: dict[str, Value] = {}
        cells: dict[str, CellValue] = {}
        for at, name in enumerate(names, _FIRST):
            where, obj = ItemSource(source, at), contents[at]
            if not self._is_there(context, obj, where):
                continue
            if type(obj) is CellType and (name in code.co_cellvars or name in code.co_freevars):
                cells[name] = _cell(context, obj, where)
            else:
                variables[name] = Lazy(obj, where)
        scope = context.scope_of(contents[_NAMESPACE], ItemSource(source, _NAMESPACE))
        closure = tuple(cells.pop(name) for name in closure_of(code))
        frame = Frame(context, prepare_code(code), scope, variables, closure, self.obj.__qualname__)
        frame.cells.update(cells)
        made = GeneratorValue(frame, self.obj.__name__, self)
        for at in range(_FIRST + len(names), len(contents)):
            where, obj = ItemSource(source, at), contents[at]
            frame.stack.append(context.wrap(obj, where) if self._is_there(context, obj, where) else None)
        assert self.place is not None
        made.started = self.place != suspension_points_of(code).creation
        frame.now = self.place
        frame.pc = frame.now + made.started
        return made

    def _is_there(self, context: CaptureContext, obj: Any, where: Source) -> bool:
        """Whether a variable is bound; that it is, or is not, is relied on."""
        if obj is native.UNBOUND:
            context.guard(where, GuardKind.IS, obj)
            return False
        context.guard(where, GuardKind.DISTINCT, _UNBOUND)
        return True

    def check_change(self, context: CaptureContext) -> None:
        """It is about to go on."""
        if not context.in_the_call:
            raise unsupported("deferred-effect", "going on with a generator that was there before")
        context.mutations.generator(self)
        if self.generator is not None and self.generator.returned is None and not self._holds_quietly():
            raise unsupported("finalizer", f"going on with {self.describe(context)}, which may let go of something")

    def _holds_quietly(self) -> bool:
        """Whether nothing shows when it lets go of what it held at entry, behind the graph."""
        return all(map(ends_quietly, native.generator_contents(self.obj)[_FIRST:]))

    def check_can_wait(self) -> None:
        """It has come to a `yield`."""
        generator = self.generator
        if generator is not None and generator.returned is None and generator.problem() is not None:
            raise unsupported("generator", generator.problem() or "")

    # -- leaving the graph --
    def put(self, reconstructor: Reconstructor) -> SetGenerator:
        assert self.generator is not None
        made = self.generator.put(reconstructor, reconstructor.recipe(self))
        made.kept = self.code
        return made

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return Load(self.source)  # type: ignore[arg-type]

    # -- protocol --
    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name in _METHODS:
            generator = self.followed(context)
            if generator is not None:
                return GeneratorMethod(generator, name)
        if context.mutations.touches(self):
            raise unsupported("attribute", f"attribute {name!r} of a generator that has gone on")
        return super().get_attr(context, name)

    def iterator(self, context: CaptureContext) -> Value:
        return self


def generator_of(context: CaptureContext, value: Value) -> GeneratorValue | None:
    """What is followed when this value is asked for its next item, if it is a generator that can be followed."""
    if isinstance(value, GeneratorValue):
        return value
    return value.followed(context) if isinstance(value, LiveGenerator) else None


def _is_kept_away(code: CodeType) -> bool:
    """Whether the program wants frames of this code to run as they are."""
    mode = native.code_mode(code)
    if mode == "leave" and (is_skipped(code) or code.co_name.startswith("<")):
        return code.co_filename.startswith(STATOR_FOLDER)  # others the hook passes over, and capture follows
    return mode != "ask"


def _cell(context: CaptureContext, cell: Any, source: Source) -> CellValue:
    known = context.real_cells.get(id(cell))
    if known is not None:
        context.guard(source, GuardKind.SAME, known.place(context))
        return known
    content: Value | None = None
    try:
        content = context.lazy(cell.cell_contents, AttrSource(source, "cell_contents"))
    except ValueError:
        context.guard(source, GuardKind.PREDICATE, is_empty)
    made = context.real_cells[id(cell)] = CellValue(content, source, cell)
    return made


def _nothing() -> Any:
    yield


_UNBOUND = ConstantSource("<unbound>", getattr(native, "UNBOUND", None))
