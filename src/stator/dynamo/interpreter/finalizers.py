"""Objects whose end the program notices at once: by `__del__`, or by a callback of a weak reference. Code behind a
break, which owns what it was handed, may not let go of one in the middle: what happens then has a place among effects.
"""

from __future__ import annotations

import gc
import io
import types
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.bytecode import decode
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CellSource, LocalSource, ReadSource
from stator.dynamo.host.naming import module_of, qualified_name
from stator.dynamo.host.native_status import native
from stator.dynamo.ir.resume import Slot
from stator.dynamo.values.base import Lazy, Value, unsupported
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.objects import MISSING, ObjectValue, lookup_in_class

if TYPE_CHECKING:
    from .frame import Frame

_DEPTH, _MOST = 3, 64  # how far an object is searched that would let go of others: so deep, so many at each depth
_QUIET = (torch.Tensor, type, types.FunctionType, types.ModuleType)
_QUIET += () if native is None else (native.Continuation,)
_CONSTANTS = frozenset((str, int, float, types.NoneType))  # not classes of the program made of these
_CODES = {types.GeneratorType: "gi_code", types.CoroutineType: "cr_code", types.AsyncGeneratorType: "ag_code"}
_OF_CODE = (types.CodeType, types.FrameType, types.TracebackType)
_IN_MEMORY = (io.StringIO, io.BytesIO)
_OF_OTHERS = ("stator.", "torch.")  # whose callbacks a program does not see


def ends_quietly(obj: object, depth: int = _DEPTH, ended: Container[int] = ()) -> bool:
    """Whether nothing happens when the object goes, and what it alone may hold. Runs no code of the program.
    `ended`: generators by id that will have come to their end by then."""
    level = [obj]
    for _ in range(depth + 1):
        if not all(_ends_quietly_itself(one, ended) for one in level):
            return False
        level = list(islice((part for one in level for part in _parts(one, type(one))), _MOST))
    return True


def _ends_quietly_itself(obj: object, ended: Container[int]) -> bool:
    kind = type(obj)
    if type(kind) is type and kind in _CODES:  # it is closed: whether it does something then, its code says
        code = getattr(obj, _CODES[kind])
        handles = code.co_exceptiontable and any(one.opname == "PUSH_EXC_INFO" for one in decode(code))
        return (not handles or id(obj) in ended) and has_no_callbacks(obj)
    return _is_quiet(kind) or (not has_finalizer(kind) and has_no_callbacks(obj))


def has_finalizer(kind: type) -> bool:
    """Whether the class says what happens when an object goes. A file in memory is closed then, which nobody sees."""
    return lookup_in_class(kind, "__del__") is not MISSING and not any(kind is one for one in _IN_MEMORY)


def _is_quiet(kind: type) -> bool:
    return (type(kind) is type and kind in _CONSTANTS) or issubclass(kind, _QUIET)  # classes may hash by themselves


def has_no_callbacks(obj: object) -> bool:
    """Guard predicate: no weak reference of the program calls it when the object goes."""
    if not type.__dict__["__weakrefoffset__"].__get__(type(obj)):
        return True
    return not any(map(_is_noticed, weakref.getweakrefs(obj)))


def _is_noticed(reference: Any) -> bool:
    if not issubclass(type(reference), weakref.ReferenceType):
        return True  # a proxy, which does not say what it calls
    callback = weakref.ReferenceType.__callback__.__get__(reference)  # type: ignore[attr-defined,misc]
    if callback is None:
        return False
    module = getattr(callback, "__module__", None) or module_of(type(callback))
    return not str(module).startswith(_OF_OTHERS)


def _parts(obj: Any, kind: type) -> Iterable[object]:
    if _is_quiet(kind):
        return ()
    if kind in (list, set, frozenset):
        return obj
    if kind is dict:
        return obj.values()
    attributes = lookup_in_class(kind, "__dict__")
    if type(attributes) is types.GetSetDescriptorType and not issubclass(kind, BaseException):
        return attributes.__get__(obj).values()
    # generators, slots, exceptions; iterators, whose own tuples may have holes, so that these are not walked themselves
    return (part for part in gc.get_referents(obj) if type(part) not in _OF_CODE)


# ---- where captured code would let go ----


def check_variable(frame: Frame, old: Value | None) -> None:
    """A variable or a place on the stack of the outermost frame lets go of this. Raises Unsupported where that ends
    something, which then happens natively."""
    context = frame.context
    if frame.program.resumption is None or len(context.frames) > 1 or old is None or frame.is_added():
        return  # before the first break the caller holds what it passed
    _check_given(frame, old)
    for part in _parts_of_made(old):
        if not _is_held(frame, part):
            _check_given(frame, part)


def on_the_stack(frame: Frame) -> list[Value]:
    """What lies on the stack of code behind a break when it begins, and others may not hold: what the operation at the
    break gave, and what has a finalizer. (Loops end natively where an iterator is at its end.)"""
    resumption = frame.program.resumption
    if resumption is None:
        return []
    kinds = resumption.point.stack
    watched = []
    latest = max((at for at, slot in enumerate(kinds) if slot is Slot.VALUE), default=-1)  # a NULL may lie above
    for at, slot in enumerate(kinds):
        given: Any = frame.context.given.get(resumption.point.stack_parameter(at)) if slot is Slot.VALUE else None
        kind = type(getattr(given, "obj", None))
        if _is_quiet(kind) or _is_iterator(kind):
            continue
        if at == latest or has_finalizer(kind):
            watched.append(given)
    return watched


def still_on_the_stack(frame: Frame, watched: list[Value]) -> list[Value]:
    """Those of them that the instruction which has run left there. Raises Unsupported where it has used one up that it
    kept nowhere else, and that ends something."""
    if frame.is_added():
        return watched
    kept = [given for given in watched if _is_among(given, frame.stack)]
    if len(kept) < len(watched):
        variables = (*frame.locals.values(), *(cell.content for cell in frame.cells.values()), frame.result)
        for given in watched:
            if not _is_among(given, frame.stack) and not _is_among(given, variables):
                _check_given(frame, given)
    return kept


def _is_among(given: Value, values: Iterable[Value | None]) -> bool:
    return any(value is not None and value.source == given.source for value in values)


def _parts_of_made(value: Value, depth: int = _DEPTH) -> Iterator[Value]:
    """What a container or object that the captured code has made holds, and what is in that."""
    if value.source is not None or not isinstance(value, ObjectValue) or depth == 0:
        return
    parts = list(value.attributes.values()) if value.attributes else []
    if isinstance(value, SequenceValue):
        parts += value.items
    elif isinstance(value, DictValue):
        parts += value.entries.values()
    for part in islice(parts, _MOST):
        if isinstance(part, Value):
            yield part
            yield from _parts_of_made(part, depth - 1)


def _is_held(frame: Frame, value: Value) -> bool:
    """Whether the variable that brought it still has it."""
    source = value.source
    now = frame.locals.get(source.name) if type(source) is LocalSource else None
    return now is not None and now.source == source


def check_handed_on(frame: Frame, values: Iterable[Value]) -> Callable[[], None]:
    """The rest of a function that the outermost frame had called is followed, and lets go of these before that ends.
    Gives what is to be called when it has been followed: whether generators have come to their end is known then."""
    values = list(values)
    waiting: list[Value] = []
    for value in values:
        if id(value) not in frame.context.handed_on:
            frame.context.handed_on[id(value)] = value
            given = _given(frame, value)
            if given is not None and not ends_quietly(given.obj) and ends_quietly(given.obj, ended=_AnyGenerator()):
                waiting.append(value)
            else:
                _check_given(frame, value, values)

    def check() -> None:
        for value in waiting:
            _check_given(frame, value, values)

    return check


class _AnyGenerator(Container[int]):
    def __contains__(self, key: object) -> bool:
        return True


def _check_given(frame: Frame, value: Value, handed_on: Iterable[Value] = ()) -> None:
    context, given = frame.context, _given(frame, value)
    if given is None or _is_quiet(type(given.obj)):
        return
    ended = {id(one.live.obj) for one in context.live_generators if one.live is not None and one.returned is not None}
    if not ends_quietly(given.obj, ended=ended):
        if _is_kept(frame, given, handed_on):
            return
        raise unsupported("finalizer", f"letting go of {_shown(given.obj)}")
    context.guard(given.source, GuardKind.TYPE, type(given.obj))  # type: ignore[arg-type]
    context.class_lookup(type(given.obj), "__del__")
    quiet = ends_quietly if _is_iterator(type(given.obj)) and id(given.obj) not in ended else has_no_callbacks
    context.guard(given.source, GuardKind.PREDICATE, quiet)  # type: ignore[arg-type]


def _is_iterator(kind: type) -> bool:
    """A generator, or what may hold one: how it ends, its class does not say."""
    if type(kind) is not type:
        return False
    return kind in _CODES or (kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__"))


def _given(frame: Frame, value: Value) -> Any:
    """The argument that this is, if it may be all that keeps an object of the program alive."""
    if type(value.source) is not LocalSource:
        return None
    given = frame.context.given.get(value.source.name)
    return given if hasattr(given, "obj") else None


def check_stored(frame: Frame, value: Value) -> None:
    """Something is stored in an object, at the end of the graph. What an operation at a break has just made nobody else
    holds till then."""
    resumption = frame.program.resumption
    if resumption is None or len(frame.context.frames) > 1:
        return
    given = _given(frame, value)
    if given is not None and given.source.name not in resumption.point.locals and not ends_quietly(given.obj):
        raise unsupported("finalizer", f"storing {_shown(given.obj)}")


def check_cell(frame: Frame, content: Value | None) -> None:
    """The same for what a variable that closures share held at entry."""
    if frame.program.resumption is None or content is None or type(content.source) is not CellSource:
        return
    check_change(content.obj if isinstance(content, Lazy) else getattr(content, "obj", None))


def check_change(old: Any) -> None:
    """An attribute or the items of a container, replaced by the captured code at the end of the graph. (Several such
    changes become one there.)"""
    if not ends_quietly(old, 1):
        raise unsupported("finalizer", f"letting go of {_shown(old)}")


# ---- generators, which may do something when they are closed ----


def check_operand(frames: Sequence[Frame], operand: Any) -> None:
    """An instruction lets go of an object from outside that was on the stack, and whose end the program would notice.
    Raises Unsupported if it may be the last to hold it."""
    held = (value for frame in frames for value in (*frame.stack, *frame.locals.values()))
    if any(value is operand or (type(value) is Lazy and value.obj is operand.obj) for value in held):
        return
    source = operand.source
    if type(source) is not LocalSource:
        return  # it is held by what it was read from
    if not _is_kept(frames[0], operand, ()):
        raise unsupported("finalizer", f"letting go of {_shown(operand.obj)}")


def _is_kept(frame: Frame, given: Any, but: Iterable[Value]) -> bool:
    """Whether something else that the outermost frame was given, none of `but`, holds the object: that is relied on."""
    going = {value.source for value in but}
    for other in frame.context.given.values():
        holder = getattr(other, "obj", None)
        if other.source not in going and holder is not given.obj and holds(holder, given.obj):
            keeps = ReadSource(holds, (other.source, given.source))  # type: ignore[arg-type]
            frame.context.guard(keeps, GuardKind.EQUALS, True)
            return True
    return False


def holds(holder: object, obj: object, depth: int = _DEPTH) -> bool:
    """Whether the object is found in this one, or in what that holds. Runs no code of the program."""
    level = [holder]
    for _ in range(depth):
        level = list(islice((part for one in level for part in _parts(one, type(one))), _MOST))
        if any(part is obj for part in level):
            return True
    return False


def _shown(obj: object) -> str:
    return f"an object of type {qualified_name(type(obj))}, whose end the program may notice"
