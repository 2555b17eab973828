"""Objects whose end the program notices at once: by `__del__`, or by a callback of a weak reference. Code behind a
break, which owns what it was handed, may not let go of one in the middle: what happens then has a place among effects.
"""

from __future__ import annotations

import gc
import io
import types
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.bytecode import decode
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CellSource, LocalSource
from stator.dynamo.host.naming import module_of, qualified_name
from stator.dynamo.host.native_status import native
from stator.dynamo.ir.resume import Slot
from stator.dynamo.values.base import Lazy, Value, unsupported
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.objects import MISSING, ObjectValue, lookup_in_class

if TYPE_CHECKING:
    from stator.dynamo.values.base import RunningFrame

_DEPTH, _MOST = 3, 64  # how far an object is searched that would let go of others: so deep, so many at each depth
_QUIET = (torch.Tensor, type, types.FunctionType, types.ModuleType)
_QUIET += () if native is None else (native.Continuation,)
_CONSTANTS = frozenset((str, int, float, types.NoneType))  # not classes of the program made of these
_CODES = {types.GeneratorType: "gi_code", types.CoroutineType: "cr_code", types.AsyncGeneratorType: "ag_code"}
_OF_CODE = (types.CodeType, types.FrameType, types.TracebackType)
_IN_MEMORY = (io.StringIO, io.BytesIO)
_OF_OTHERS = ("stator.", "torch.")  # whose callbacks a program does not see


def ends_quietly(obj: object, depth: int = _DEPTH) -> bool:
    """Whether nothing happens when the object goes, and what it alone may hold. Runs no code of the program."""
    level = [obj]
    for _ in range(depth + 1):
        if not all(map(_ends_quietly_itself, level)):
            return False
        level = list(islice((part for one in level for part in _parts(one, type(one))), _MOST))
    return True


def _ends_quietly_itself(obj: object) -> bool:
    kind = type(obj)
    if type(kind) is type and kind in _CODES:  # it is closed: whether it does something then, its code says
        code = getattr(obj, _CODES[kind])
        handles = code.co_exceptiontable and any(one.opname == "PUSH_EXC_INFO" for one in decode(code))
        return not handles and has_no_callbacks(obj)
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


def check_variable(frame: RunningFrame, old: Value | None) -> None:
    """A variable or a place on the stack of the outermost frame lets go of this. Raises Unsupported where that ends
    something, which then happens natively."""
    context = frame.context
    if frame.program.resumption is None or len(context.frames) > 1 or old is None or frame.is_added():
        return  # before the first break the caller holds what it passed
    _check_given(frame, old)
    for part in _parts_of_made(old):
        source = part.source
        now = frame.locals.get(source.name) if type(source) is LocalSource else None
        if now is None or now.source != source:  # otherwise its variable still has it
            _check_given(frame, part)


def check_stack(frame: RunningFrame) -> None:
    """What lies on the stack of code behind a break, and nobody else may hold, is used up somewhere in the middle:
    where it has a finalizer the code runs as it is. (A loop checks its iterator where that is at its end.)"""
    resumption = frame.program.resumption
    if resumption is None:
        return
    point = resumption.point
    in_loop = decode(point.code)[point.index].opname == "FOR_ITER"
    for at, slot in enumerate(point.stack):
        given: Any = frame.context.given.get(point.stack_parameter(at)) if slot is Slot.VALUE else None
        kind = type(getattr(given, "obj", None))
        iterates = (in_loop or at < len(point.stack) - 1) and lookup_in_class(kind, "__next__") is not MISSING
        if has_finalizer(kind) and not iterates and not _is_iterator(kind):
            raise unsupported("finalizer", f"using an object of type {qualified_name(kind)}, which has a finalizer")


def check_iterator(frame: RunningFrame, gone: Value) -> None:
    """A loop lets go of its iterator, which is at its end."""
    kind = gone.python_type(frame.context)
    if has_finalizer(kind) and not _is_iterator(kind):
        check_variable(frame, gone)


def check_handed_on(frame: RunningFrame, values: Iterable[Value]) -> None:
    """The rest of a function that the outermost frame had called is followed, and lets go of these before that ends."""
    for value in values:
        _check_given(frame, value)


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


def _check_given(frame: RunningFrame, value: Value) -> None:
    """`value` may be an argument that is all that keeps an object of the program alive."""
    context = frame.context
    given: Any = context.given.get(value.source.name) if type(value.source) is LocalSource else None
    if not hasattr(given, "obj") or _is_quiet(type(given.obj)):
        return
    check_change(given.obj, _DEPTH)
    context.guard(given.source, GuardKind.TYPE, type(given.obj))
    context.class_lookup(type(given.obj), "__del__")
    quiet = ends_quietly if _is_iterator(type(given.obj)) else has_no_callbacks
    context.guard(given.source, GuardKind.PREDICATE, quiet)


def _is_iterator(kind: type) -> bool:
    """A generator, or what may hold one: how it ends, its class does not say."""
    if type(kind) is not type:
        return False
    return kind in _CODES or (kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__"))


def check_cell(frame: RunningFrame, content: Value | None) -> None:
    """A variable that closures share lets go of what it held at entry."""
    if frame.program.resumption is None or content is None or type(content.source) is not CellSource:
        return
    check_change(content.obj if isinstance(content, Lazy) else getattr(content, "obj", None))


def check_change(old: Any, depth: int = 1) -> None:
    """An attribute or the items of a container, replaced by the captured code at the end of the graph. (Several such
    changes become one there.)"""
    if not ends_quietly(old, depth):
        kind = qualified_name(type(old))
        raise unsupported("finalizer", f"letting go of an object of type {kind}, whose end the program may notice")


def check_operand(frames: Sequence[RunningFrame], operand: Any) -> None:
    """An instruction lets go of a generator from outside that was on the stack, and that does something when it is
    closed. Raises Unsupported where no variable holds it."""
    held = (value for frame in frames for value in (*frame.stack, *frame.locals.values()))
    if any(value is operand or (type(value) is Lazy and value.obj is operand.obj) for value in held):
        return
    if type(operand.source) is LocalSource:  # others are held by what they were read from
        raise unsupported("finalizer", "letting go of a generator, which does something when it is closed")
