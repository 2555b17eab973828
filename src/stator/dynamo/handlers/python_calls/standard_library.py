"""Functions of the standard library: pure functions that run during capture, functools.partial, context variables, weak
references, dataclasses.

Of containers with weak references (WeakValueDictionary, WeakKeyDictionary, WeakSet) another thread or a collection may
take items away between a guard and what was captured, where eager Python asks and changes in one go. So what changes
one, or goes through it, is done natively; looking one key up is followed like any other code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import math
import operator
import os
import pickle
import platform
import re
import sys
import threading
import types
import typing
import weakref
from contextvars import ContextVar
from types import FunctionType
from typing import Any, NoReturn

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, CallSource, ConstantSource, ReadSource, Source
from stator.dynamo.host.hook import skip_frame
from stator.dynamo.host.naming import full_name
from stator.dynamo.host.numpy_boundary import numpy_numbers
from stator.dynamo.interpreter.calling import calls, fold, handlers, made_functions
from stator.dynamo.interpreter.wrapping import wrappers, wraps
from stator.dynamo.values.base import CaptureContext, Lazy, NotConstant, Raised, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.objects import MISSING, ObjectValue, c_methods
from stator.dynamo.values.partials import GETTERS, GetterValue, PartialValue
from stator.dynamo.values.tensors.tensor import TensorValue

fold(*(function for function in vars(math).values() if callable(function)), *numpy_numbers())
fold(
    platform.system,
    platform.machine,
    os.fspath,
    typing.get_origin,
    typing.get_args,
    inspect.getattr_static,
    re.compile,
    re.match,
    re.search,
    re.fullmatch,
    re.sub,
    re.split,
    re.findall,
    re.escape,
    sys.intern,
)


def _register_type_check(function: Any, kind: type) -> None:
    def handler(context: CaptureContext, value: Value) -> Value:
        return context.call(context.known(isinstance), [value, context.known(kind)], {})

    calls(function)(handler)


_register_type_check(inspect.isclass, type)
_register_type_check(inspect.isfunction, types.FunctionType)


def _read_in_each_call(function: Any) -> None:
    def handler(context: CaptureContext) -> Value:
        return context.wrap(function(), ReadSource(function))

    calls(function)(handler)


for _fact in (os.getpid, sys.getrecursionlimit, threading.get_ident):
    _read_in_each_call(_fact)


# ---- pickle ----


@calls(pickle.dumps)
def _pickled(context: CaptureContext, value: Value) -> Value:
    """A memoizer's key: the bytes of a flat dict or tuple of constants. A text or bytes object that occurs twice is
    refused, because pickle writes a reference if both are one object."""
    parts = _plain_parts(context, value)
    texts = [part for part in parts if type(part) in (str, bytes)]
    if not all(type(part) in _PICKLED for part in parts) or len(set(texts)) < len(texts):
        raise unsupported("call-builtin", f"calling pickle.dumps on {value.describe(context)}")
    return ConstantValue(pickle.dumps(context.constant_of(value, "what is pickled")))


def _plain_parts(context: CaptureContext, value: Value) -> list[Any]:
    if isinstance(value, DictValue) and value.cls is dict:
        pairs = [part for pair in value.items(context) for part in pair]
    elif isinstance(value, TupleValue) and value.cls is tuple:
        pairs = list(context.iterate(value))
    else:
        raise unsupported("call-builtin", f"calling pickle.dumps on {value.describe(context)}")
    return [context.constant_of(part, "what is pickled") for part in pairs]


_PICKLED = (types.NoneType, bool, int, float, str, bytes)


# ---- functools ----


@calls(functools.partial)
def _partial(context: CaptureContext, function: Value, *args: Value, **kwargs: Value) -> Value:
    if isinstance(function, PartialValue):
        return PartialValue(function.function, [*function.args, *args], {**function.keywords, **kwargs})
    return PartialValue(function, list(args), kwargs)


@wraps(functools.partial)
def _wrap_partial(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if source is None:
        source = ConstantSource("partial", obj)
    if type(obj) is not functools.partial:
        return wrappers[object](context, obj, source)
    context.guard(source, GuardKind.TYPE, functools.partial)
    from_args = context.wrap(obj.args, AttrSource(source, "args"))
    keywords = context.wrap(obj.keywords, AttrSource(source, "keywords"))
    assert isinstance(from_args, TupleValue) and isinstance(keywords, DictValue)
    named = {key.constant(): value for key, value in keywords.items(context)}
    function = context.wrap(obj.func, AttrSource(source, "func"))
    return PartialValue(function, list(from_args.items), named, source)


def _dispatch(context: CaptureContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The choice of functools.singledispatch for a class, which guards ask for again: functions may be registered."""
    if function.fn is None or function.source is None:
        raise unsupported("functools", "functools.singledispatch in captured code")
    cls = context.real_of(args[0], "a class")
    chosen = context.run_real(function.fn, (cls,))
    return context.wrap(chosen, CallSource(operator.call, (function.source, ConstantSource(full_name(cls), cls))))


_codes = [one for one in functools.singledispatch.__code__.co_consts if isinstance(one, types.CodeType)]
made_functions[id(next(one for one in _codes if one.co_name == "dispatch"))] = _dispatch


def _getter(cls: type, args: list[Value], keywords: dict[str, Value]) -> Value:
    names = args if cls is operator.attrgetter else args[:1] if cls is operator.methodcaller else []
    if not args or not all(isinstance(name, ConstantValue) and type(name.value) is str for name in names):
        raise unsupported("new-object", f"an operator.{cls.__name__} of these arguments")
    return GetterValue(cls, args, keywords)


@wraps(*GETTERS)
def _wrap_getter(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    """Getters do not change; what one holds is guarded by its identity."""
    made, args = obj.__reduce__()
    if type(obj) not in GETTERS or made is not type(obj) or not all(map(context.is_constant_object, args)):
        return wrappers[object](context, obj, source)  # a methodcaller with keywords reduces to a partial
    source = source or ConstantSource(made.__name__, obj)
    context.guard(source, GuardKind.IS, obj)
    return GetterValue(made, [context.known(arg) for arg in args], {}, source)


@wraps(ContextVar)
def _wrap_context_variable(context: CaptureContext, obj: ContextVar[Any], source: Source | None) -> Value:
    if source is None:
        source = ConstantSource(obj.name, obj)
    context.guard(source, GuardKind.IS, obj)
    return ObjectValue(ContextVar, obj, source)


def _context_value(variable: ContextVar[Any]) -> Any:
    """Its value in the current context, or its own default; MISSING if it has neither."""
    try:
        return variable.get()
    except LookupError:
        return MISSING


def _value_set(variable: ContextVar[Any]) -> Any:
    """Its value in the current context, or MISSING."""
    return variable.get(MISSING)


@c_methods.register(ContextVar.get)
def _get_context_value(context: CaptureContext, variable: ObjectValue, default: Value | None = None) -> Value:
    """A guard holds the value. `set` and `reset` end the graph."""
    assert variable.source is not None
    read = _context_value if default is None else _value_set
    source, found = CallSource(read, (variable.source,)), read(variable.obj)
    if found is not MISSING:
        return context.wrap(found, source)
    context.guard(source, GuardKind.IS, MISSING)
    if default is None:
        raise context.raised_with(LookupError, [variable])
    return default


# ---- sys ----


@calls(sys.exit)
def _exit(context: CaptureContext, status: Value | None = None) -> Value:
    given = [] if status is None or context.is_none(status) else [status]
    if given and isinstance(status, TupleValue):
        given = list(status.items)
    raise Raised(context.call(context.known(SystemExit), given, {}))


@calls(sys.exc_info)
def _exc_info(context: CaptureContext) -> Value:
    none = ConstantValue(None)
    if not context.handled:
        context.rely_on_nothing_handled()
        return TupleValue([none, none, none])
    error = context.handled[-1]
    return TupleValue([context.known(error.python_type(context)), error, context.get_attr(error, "__traceback__")])


@calls(sys.exception)
def _exception(context: CaptureContext) -> Value | None:
    if context.handled:
        return context.handled[-1]
    context.rely_on_nothing_handled()
    return None


# ---- weakref ----


@wraps(weakref.ReferenceType)
def _wrap_weakref(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if source is None:
        raise unsupported("unguardable", "a weak reference that no guard can reach")
    context.guard(source, GuardKind.TYPE, type(obj))
    return WeakReferenceValue(obj, source)


class WeakReferenceValue(Value):
    """A weak reference from outside, whose referent a guard checks."""

    __slots__ = ("reference",)

    def __init__(self, reference: Any, source: Source) -> None:
        self.source: Source = source
        self.reference = reference

    def python_type(self, context: CaptureContext) -> type:
        return type(self.reference)

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if type(self.reference) is not weakref.ref:
            raise unsupported("call", f"calling {self.describe(context)}, a subclass of weakref.ref")
        referent = self.reference()
        if may_have_dropped(context, referent):
            raise unsupported("call", "asking a weak reference for an object that may have been dropped in the graph")
        return context.wrap(referent, CallSource(operator.call, (self.source,)))

    def builtin_method(self, context: CaptureContext, name: str) -> Any:
        """Capture follows none of its methods."""


# ---- dataclasses ----


def _class_or_class_of(context: CaptureContext, value: Value) -> type:
    """The value itself if it is a class, else its class."""
    try:
        cls = value.real()
    except NotConstant:
        cls = None
    return cls if isinstance(cls, type) else value.python_type(context)


@calls(dataclasses.fields)
def _fields(context: CaptureContext, value: Value) -> Value:
    cls = _class_or_class_of(context, value)
    found = context.run_real(dataclasses.fields, (cls,))
    entries = AttrSource(ConstantSource(full_name(cls), cls), "__dataclass_fields__")
    context.guard(entries, GuardKind.DICT_KEYS, tuple(getattr(cls, "__dataclass_fields__")))  # noqa: B009
    return TupleValue([context.wrap(field, ConstantSource(f"field {field.name}", field)) for field in found])


@calls(logging.getLogger)
def _get_logger(context: CaptureContext, name: Value | None = None) -> Value:
    logger = logging.getLogger(context.constant_of(name, "a logger's name") if name is not None else None)
    return context.wrap(logger, ConstantSource(f"logger {logger.name}", logger))


@calls(contextlib.suppress)
def _suppress(context: CaptureContext, *classes: Value) -> Value:
    made = ObjectValue(contextlib.suppress)
    made.set_own(context, "_exceptions", TupleValue(list(classes)))
    return made


_FOLLOWED = frozenset({"__getitem__", "__contains__", "__len__", "get"})


def _functions(cls: type) -> list[FunctionType]:
    found = [value for value in vars(cls).values() if type(value) is FunctionType]
    return [function for function in dict.fromkeys(found) if function.__name__ not in _FOLLOWED]


def _keep_native(cls: type, function: FunctionType) -> None:
    skip_frame(function.__code__)

    @calls(function)
    def refuse(context: CaptureContext, *args: Value, **kwargs: Value) -> NoReturn:
        raise unsupported("weak-container", f"{cls.__name__}.{function.__name__}, whose items others may let go of")


for _cls in (weakref.WeakValueDictionary, weakref.WeakKeyDictionary, weakref.WeakSet):
    for _function in _functions(_cls):
        _keep_native(_cls, _function)


def may_have_dropped(context: CaptureContext, obj: object) -> bool:
    """Whether `obj` may be dead by now: no variable of the running frames holds it, and captured code changed a
    possible holder or rebound a parameter."""
    value = context.wrapped.get(id(obj))
    variables = [held for frame in context.frames for held in frame.locals.values()]
    if value is not None and any(held is value or (type(held) is Lazy and held.obj is obj) for held in variables):
        return False
    if not all(_keeps(context, kind, changed, name, obj) for kind, changed, name in context.mutations.entries.values()):
        return True
    frame = context.frames[0]
    for name, given in context.owned_arguments.items():
        cell = frame.cells.get(name)
        now = frame.locals.get(name) if cell is None else cell.content
        if now is not given and (now is None or now.source != given.source):
            return True
    return False


def _keeps(context: CaptureContext, kind: str, changed: Any, name: str, obj: object) -> bool:
    """Whether this change cannot have dropped the last reference to `obj`."""
    if kind == "message":
        return True
    if kind == "content":  # a dictionary of hooks, to which a handle refers
        return getattr(changed, "obj", None) is obj
    if kind == "attribute" and isinstance(changed, TensorValue):
        return name == "grad" and not isinstance(obj, torch.Tensor)
    if kind == "attribute" and isinstance(changed, ObjectValue):
        attributes = changed.instance_dict()
        in_class = hasattr(type(changed.obj), name)
        return attributes is not None and not in_class and context.is_constant_object(attributes.get(name))
    return False


handlers.add_all(
    {
        operator.itemgetter: lambda context, *keys: _getter(operator.itemgetter, list(keys), {}),
        operator.attrgetter: lambda context, *names: _getter(operator.attrgetter, list(names), {}),
        operator.methodcaller: lambda context, *args, **kwargs: _getter(operator.methodcaller, list(args), kwargs),
        dataclasses.is_dataclass: lambda context, value: ConstantValue(
            dataclasses.is_dataclass(_class_or_class_of(context, value))
        ),
    }
)
