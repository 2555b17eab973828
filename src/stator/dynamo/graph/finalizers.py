"""Objects whose end the program can observe: by `__del__`, or by a callback of a weak reference. Code behind a break
owns its arguments. Where captured code would let go of such an object, the graph ends, because the object's end has a
place among the program's effects.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from stator.dynamo.bytecode import decode
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CellSource, LocalSource
from stator.dynamo.host.naming import module_of, qualified_name
from stator.dynamo.host.native_status import native
from stator.dynamo.ir.resume import Slot
from stator.dynamo.values.base import Lazy, RunningFrame, Value, unsupported
from stator.dynamo.values.containers.deques import DequeValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import SequenceValue
from stator.dynamo.values.objects import MISSING, ObjectValue, lookup_in_class

_DEPTH, _MOST = 4, 64  # levels of an object's parts that are searched, and objects at each level
_QUIET = (torch.Tensor, type, types.FunctionType, types.ModuleType)
_QUIET += () if native is None else (native.Continuation,)
_CONSTANTS = frozenset((str, int, float, types.NoneType))  # not classes of the program made of these
_OF_CODE = (types.CodeType, types.FrameType, types.TracebackType)
_OF_OTHERS = ("stator.", "torch.")  # modules whose callbacks a program does not see


def ends_quietly(obj: object, depth: int = _DEPTH) -> bool:
    """Whether the program cannot observe the end of an object and of its parts. Runs no code of the program."""
    level = [obj]
    for _ in range(depth + 1):
        if not all(_is_quiet(type(one)) or (not _has_finalizer(type(one)) and has_no_callbacks(one)) for one in level):
            return False
        parts = (part for one in level if not _is_quiet(type(one)) for part in gc.get_referents(one))
        level = list(islice((part for part in parts if type(part) not in _OF_CODE), _MOST))
    return True


def _has_finalizer(kind: type) -> bool:
    return lookup_in_class(kind, "__del__") is not MISSING


def _is_quiet(kind: type) -> bool:
    return (type(kind) is type and kind in _CONSTANTS) or issubclass(kind, _QUIET)  # classes may hash by themselves


def has_no_callbacks(obj: object) -> bool:
    """Guard predicate: no weak reference of the program has a callback for the end of the object."""
    return not (_may_be_referenced_weakly(type(obj)) and any(map(_is_noticed, weakref.getweakrefs(obj))))


def _may_be_referenced_weakly(kind: type) -> bool:
    return bool(type.__dict__["__weakrefoffset__"].__get__(kind))


def _is_noticed(reference: Any) -> bool:
    if not issubclass(type(reference), weakref.ReferenceType):
        return True  # a proxy does not show its callback
    callback = weakref.ReferenceType.__callback__.__get__(reference)  # type: ignore[attr-defined,misc]
    if callback is None:
        return False
    module = getattr(callback, "__module__", None) or module_of(type(callback))
    return not str(module).startswith(_OF_OTHERS)


# ---- where captured code would let go ----


def check_variable(frame: RunningFrame, old: Value | None) -> None:
    """A variable or a place on the stack of the outermost frame lets go of a value. Raises Unsupported if the program
    can observe the end of the value's object."""
    context = frame.context
    if frame.program.resumption is None or len(context.frames) > 1 or old is None or frame.is_added():
        return  # before the first break the caller holds the arguments
    _check_given(frame, old)
    for part in _parts_of_made(old):
        source = part.source
        now = frame.locals.get(source.name) if type(source) is LocalSource else None
        if now is None or now.source != source:  # otherwise a variable still holds it
            _check_given(frame, part)


def _parts_of_made(value: Value, depth: int = _DEPTH) -> Iterator[Value]:
    """The values inside a container or object that the captured code made."""
    if value.source is not None or not isinstance(value, ObjectValue) or depth == 0:
        return
    parts = list(value.attributes.values()) if value.attributes else []
    if isinstance(value, SequenceValue):
        parts += value.items
    elif isinstance(value, DequeValue):
        parts += value.known_items or value.added
    elif isinstance(value, DictValue):
        parts += value.entries.values()
    for part in islice(parts, _MOST):
        if isinstance(part, Value):
            yield part
            yield from _parts_of_made(part, depth - 1)


def check_stack(frame: RunningFrame) -> None:
    """Raises Unsupported if an object with a finalizer lies on the stack of code behind a break, which uses it up in
    the middle. Iterators of loops are exempt: `check_iterator` looks at them where the loop ends."""
    resumption = frame.program.resumption
    if resumption is None:
        return
    point = resumption.point
    loops = len(point.stack) - (decode(point.code)[point.index].opname != "FOR_ITER")
    for at, slot in enumerate(point.stack):
        given: Any = frame.context.owned_arguments.get(point.stack_parameter(at)) if slot is Slot.VALUE else None
        kind = type(getattr(given, "obj", None))
        iterates = kind is types.GeneratorType or (at < loops and lookup_in_class(kind, "__next__") is not MISSING)
        if _has_finalizer(kind) and not iterates:
            raise unsupported("finalizer", f"using an object of type {qualified_name(kind)}, which has a finalizer")


def check_iterator(frame: RunningFrame, gone: Value) -> None:
    """A loop lets go of its iterator, which is at its end."""
    kind = gone.python_type(frame.context)
    if _has_finalizer(kind) and kind is not types.GeneratorType:
        check_variable(frame, gone)


def check_handed_on(frame: RunningFrame, values: Iterable[Value]) -> None:
    """Capture follows the rest of a called function, which lets go of these values before the outermost frame ends."""
    for value in values:
        _check_given(frame, value)


def _check_given(frame: RunningFrame, value: Value) -> None:
    """Raises Unsupported if the value is an argument that may alone keep an object whose end the program observes."""
    context = frame.context
    given: Any = context.owned_arguments.get(value.source.name) if type(value.source) is LocalSource else None
    if not hasattr(given, "obj") or _is_quiet(type(given.obj)):
        return
    check_change(given.obj, _DEPTH)
    context.guard(given.source, GuardKind.TYPE, type(given.obj))
    context.class_lookup(type(given.obj), "__del__")
    if _may_be_referenced_weakly(type(given.obj)):
        context.guard(given.source, GuardKind.CALLBACKS, has_no_callbacks)


def check_cell(frame: RunningFrame, content: Value | None) -> None:
    """A variable that closures share lets go of its content at entry."""
    if frame.program.resumption is None or content is None or type(content.source) is not CellSource:
        return
    check_change(content.obj if isinstance(content, Lazy) else getattr(content, "obj", None))


def check_change(old: Any, depth: int = 2) -> None:
    """Captured code replaces an attribute or the items of a container. The graph's end joins several such changes of
    one place, and so may not end an object that the program observes."""
    if not ends_quietly(old, depth):
        kind = qualified_name(type(old))
        raise unsupported("finalizer", f"letting go of an object of type {kind}, whose end the program may notice")
