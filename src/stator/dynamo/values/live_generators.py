"""Generators that existed before the frame, such as one that a loop goes through whose body breaks the graph.

One that waits at a `yield` is followed from there on like one made in the captured code; when the graph ends, it is put
where it has come to, ahead of whatever runs next.
"""

from __future__ import annotations

from types import CellType, CodeType, GeneratorType
from typing import TYPE_CHECKING, Any

from ..bytecode import Instruction
from ..finalizers import ends_quietly
from ..finishing import DIRECTLY
from ..frame import Frame, follow_rest
from ..generator_places import Place, Waits, places_of
from ..guard import GuardKind
from ..hook import STATOR_FOLDER, is_left_alone
from ..native_status import native
from ..program import Handler, program_of
from ..recipe import Load, Recipe, SetGenerator
from ..resume import closure_of
from ..source import AttrSource, ConstantSource, ItemSource, ReadSource, Source
from .base import Lazy, Value, unsupported
from .cells import CellValue, is_empty
from .generators import GeneratorMethod, GeneratorValue
from .objects import ObjectValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer

_UNIT, _CODE, _NAMESPACE, _FIRST = range(4)  # what stands where in a generator's contents
_FINISHED = -2
_AT_WORK = (Waits.STEPPING, Waits.CALLING)
_METHODS = ("__next__", "__iter__", "send", "throw", "close")


class LiveGenerator(ObjectValue):
    """A generator found at `source`. What it holds is read, and relied on, when it is asked for something."""

    __slots__ = ("asked", "code", "generator", "place")

    def __init__(self, obj: Any, source: Source) -> None:
        super().__init__(GeneratorType, obj, source)
        self.asked = False
        self.generator: GeneratorValue | None = None
        self.code: CodeType | None = None
        self.place: Place | None = None  # where it was at entry

    # -- following it --
    def followed(self, tracer: Tracer) -> GeneratorValue | None:
        """What goes on with it; None where that cannot be followed."""
        if not self.asked:
            self.asked = True
            self.generator = self._follow(tracer)
            if self.generator is not None:
                tracer.live_generators.append(self.generator)
        return self.generator

    def _follow(self, tracer: Tracer) -> GeneratorValue | None:
        contents = native.generator_contents(self.obj)
        unit, code = contents[_UNIT], contents[_CODE]
        source = ReadSource(native.generator_contents, (self.source,))  # type: ignore[arg-type]
        if unit == _FINISHED:
            tracer.guard(ItemSource(source, _UNIT), GuardKind.EQUALS, unit)
            return self._finished(tracer)
        places = None if code is None else places_of(code)
        place = None if places is None else places.at(unit)
        if places is None or place is None or place.waits in _AT_WORK or _is_kept_away(places.user_code):
            return None
        if place.waits is Waits.INSIDE and not _is_rest_of_call(contents[-1]):
            return None  # it was interrupted there
        tracer.guard(ItemSource(source, _UNIT), GuardKind.EQUALS, unit)
        tracer.guard(ItemSource(source, _CODE), GuardKind.IS, code)
        tracer.guard(source, GuardKind.LENGTH, len(contents))
        self.code, self.place = code, place
        return self._made(tracer, places.user_code, contents, source)

    def _finished(self, tracer: Tracer) -> GeneratorValue:
        scope = tracer.frames[-1].globals
        empty = _nothing.__code__
        made = GeneratorValue(Frame(tracer, program_of(empty), scope, {}, (), empty.co_qualname), empty.co_name, self)
        made.started, made.returned = True, tracer.constant(None)
        return made

    def _made(self, tracer: Tracer, code: CodeType, contents: tuple[Any, ...], source: Source) -> GeneratorValue:
        names = (*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames))
        names += code.co_freevars
        variables: dict[str, Value] = {}
        cells: dict[str, CellValue] = {}
        for at, name in enumerate(names, _FIRST):
            where, obj = ItemSource(source, at), contents[at]
            if not self._is_there(tracer, obj, where):
                continue
            if type(obj) is CellType and (name in code.co_cellvars or name in code.co_freevars):
                cells[name] = _cell(tracer, obj, where)
            else:
                variables[name] = Lazy(obj, where)
        scope = tracer.scope_of(contents[_NAMESPACE], ItemSource(source, _NAMESPACE))
        closure = tuple(cells.pop(name) for name in closure_of(code))
        frame = Frame(tracer, program_of(code), scope, variables, closure, self.obj.__qualname__)
        frame.cells.update(cells)
        made = GeneratorValue(frame, self.obj.__name__, self)
        assert self.place is not None
        inside = self.place.waits is Waits.INSIDE
        if inside:
            rest = _rest_of_call(tracer, contents[-1], ItemSource(source, len(contents) - 1))
            frame.going_on = rest
        for at in range(_FIRST + len(names), len(contents) - inside):
            where, obj = ItemSource(source, at), contents[at]
            frame.stack.append(tracer.wrap(obj, where) if self._is_there(tracer, obj, where) else None)
        made.started = self.place.waits is not Waits.CREATED
        made.paused = self.place.waits is Waits.BEFORE or inside
        frame.now = self.place.index
        frame.pc = frame.now + (self.place.waits is Waits.YIELDED)
        return made

    def _is_there(self, tracer: Tracer, obj: Any, where: Source) -> bool:
        """Whether a variable is bound; that it is, or is not, is relied on."""
        if obj is native.UNBOUND:
            tracer.guard(where, GuardKind.IS, obj)
            return False
        tracer.guard(where, GuardKind.DISTINCT, _UNBOUND)
        return True

    def has_made_code(self) -> bool:
        """Whether other code fits into its frame, so that a graph may end in the middle of it."""
        return self.code is not None and places_of(self.code).user_code is not self.code

    def check_change(self, tracer: Tracer) -> None:
        """It is about to go on."""
        if not tracer.in_the_call:
            raise unsupported("deferred-effect", "going on with a generator that was there before")
        tracer.mutations.generator(self)
        if self.generator is not None and self.generator.returned is None and not self._holds_quietly():
            raise unsupported("finalizer", f"going on with {self.describe(tracer)}, which may let go of something")

    def _holds_quietly(self) -> bool:
        """Whether nothing shows when it lets go of what it held at entry, behind the graph."""
        held = native.generator_contents(self.obj)[_FIRST:]
        if self.place is not None and self.place.waits is Waits.INSIDE:
            held = (*held[:-1], *held[-1][1:])
        return all(map(ends_quietly, held))

    def check_can_wait(self) -> None:
        """It has come to a `yield`."""
        generator = self.generator
        if generator is not None and generator.returned is None and generator.problem() is not None:
            raise unsupported("generator", generator.problem() or "")

    # -- leaving the graph --
    def put(self, exits: ExitBuilder) -> SetGenerator:
        assert self.generator is not None
        made = self.generator.put(exits, exits.recipe(self))
        if self.code is None:
            return made
        if made.place is None or (made.place in places_of(self.code).units and not made.called):
            made.kept = self.code
        return made

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return Load(self.source)  # type: ignore[arg-type]

    # -- protocol --
    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in _METHODS:
            generator = self.followed(tracer)
            if generator is not None:
                return GeneratorMethod(generator, name)
        if tracer.mutations.touches(self):
            raise unsupported("attribute", f"attribute {name!r} of a generator that has gone on")
        return super().get_attr(tracer, name)

    def iterator(self, tracer: Tracer) -> Value:
        return self


def generator_of(tracer: Tracer, value: Value) -> GeneratorValue | None:
    """What is followed when this value is asked for its next item, if it is a generator that can be followed."""
    if isinstance(value, GeneratorValue):
        return value
    return value.followed(tracer) if isinstance(value, LiveGenerator) else None


def _is_rest_of_call(held: Any) -> bool:
    return type(held) is tuple and len(held) > 0 and type(held[0]) is native.Continuation


def _rest_of_call(tracer: Tracer, waiting: tuple[Any, ...], source: Source) -> Handler:
    """What a generator does first that waits in the middle of a function which it had called: the rest of that."""
    rest, *values = waiting
    tracer.guard(ItemSource(source, 0), GuardKind.IS, rest)
    tracer.guard(source, GuardKind.LENGTH, len(waiting))
    function = rest._function
    free = len(closure_of(function.__code__))
    places = [ItemSource(source, at) for at in range(1, len(waiting))]
    cells = tuple(_cell(tracer, cell, where) for cell, where in zip(values[:free], places, strict=False))
    args: list[Value] = [Lazy(value, where) for value, where in zip(values[free:], places[free:], strict=True)]

    def go_on(frame: Frame, instruction: Instruction) -> None:
        frame.push(follow_rest(tracer, function, cells, args, DIRECTLY))

    return go_on


def _is_kept_away(code: CodeType) -> bool:
    """Whether the program wants frames of this code to run as they are."""
    mode = native.code_mode(code)
    if mode == "leave" and (is_left_alone(code) or code.co_name.startswith("<")):
        return code.co_filename.startswith(STATOR_FOLDER)  # others the hook passes over, and capture follows
    return mode != "ask"


def _cell(tracer: Tracer, cell: Any, source: Source) -> CellValue:
    known = tracer.real_cells.get(id(cell))
    if known is not None:
        tracer.guard(source, GuardKind.SAME, known.place(tracer))
        return known
    content: Value | None = None
    try:
        content = tracer.lazy(cell.cell_contents, AttrSource(source, "cell_contents"))
    except ValueError:
        tracer.guard(source, GuardKind.PREDICATE, is_empty)
    made = tracer.real_cells[id(cell)] = CellValue(content, source, cell)
    return made


def _nothing() -> Any:
    yield


_UNBOUND = ConstantSource("<unbound>", getattr(native, "UNBOUND", None))
