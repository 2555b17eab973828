"""Functions of the standard library: functools, math, inspect, and what may be folded."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import math
import operator
import os
import platform
import re
import sys
import threading
import time
import types
import typing
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..calling import calls, fold
from ..dropped import may_have_dropped
from ..guard import GuardKind
from ..naming import full_name
from ..plain import numpy_numbers
from ..recipe import CallRecipe, Constant, Recipe
from ..source import AttrSource, CallSource, ConstantSource, ReadSource, is_about_made_class
from ..values.base import NotConstant, Raised, Value, unsupported
from ..values.constants import ConstantValue
from ..values.context_variables import ContextVariable
from ..values.functions import FunctionValue
from ..values.mappings import DictValue
from ..values.modules import ModuleValue
from ..values.objects import ObjectValue
from ..values.partials import PartialValue
from ..values.sequences import TupleValue
from ..values.tensors import TensorValue
from ..wrapping import wrappers, wraps

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..source import Source
    from ..tracer import Tracer

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


@calls(str.maketrans)
def _maketrans(tracer: Tracer, *given: Value) -> Value:
    what = "an argument of str.maketrans"
    if len(given) == 1 and tracer.realized(given[0]).python_type(tracer) is dict:
        pairs = list(tracer.pairs(given[0]))
        real: tuple[Any, ...] = ({tracer.constant_of(key, what): tracer.constant_of(to, what) for key, to in pairs},)
    else:
        real = tuple(tracer.constant_of(one, what) for one in given)
    made = tracer.run_real(str.maketrans, real)
    return tracer.dict_of([ConstantValue(part) for pair in made.items() for part in pair])


def _asks_for_type(function: Any, kind: type) -> None:
    def handler(tracer: Tracer, value: Value) -> Value:
        return ConstantValue(issubclass(value.python_type(tracer), kind))

    calls(function)(handler)


_asks_for_type(inspect.isclass, type)
_asks_for_type(inspect.isfunction, types.FunctionType)


def _may_change(function: Any) -> None:
    """A fact of the process or thread that is read in each call anew."""

    def handler(tracer: Tracer) -> Value:
        return tracer.wrap(function(), ReadSource(function))

    calls(function)(handler)


for _fact in (os.getpid, sys.getrecursionlimit, threading.get_ident):
    _may_change(_fact)


# ---- functools ----


@calls(functools.partial)
def _partial(tracer: Tracer, function: Value, *args: Value, **kwargs: Value) -> Value:
    if isinstance(function, PartialValue):
        return PartialValue(function.function, [*function.args, *args], {**function.keywords, **kwargs})
    return PartialValue(function, list(args), kwargs)


@wraps(functools.partial)
def _wrap_partial(tracer: Tracer, obj: Any, source: Source | None) -> Value:
    if source is None:
        source = ConstantSource("partial", obj)
    if type(obj) is not functools.partial:
        return wrappers[object](tracer, obj, source)
    tracer.guard(source, GuardKind.TYPE, functools.partial)
    from_args = tracer.wrap(obj.args, AttrSource(source, "args"))
    keywords = tracer.wrap(obj.keywords, AttrSource(source, "keywords"))
    assert isinstance(from_args, TupleValue) and isinstance(keywords, DictValue)
    named = {key.constant(): value for key, value in keywords.items(tracer)}
    function = tracer.wrap(obj.func, AttrSource(source, "func"))
    return PartialValue(function, list(from_args.items), named, source, obj)


@wraps(ContextVar)
def _wrap_context_variable(tracer: Tracer, obj: ContextVar[Any], source: Source | None) -> Value:
    if source is None:
        source = ConstantSource(obj.name, obj)
    tracer.guard(source, GuardKind.IS, obj)
    return ContextVariable(obj, source)


@calls(functools.update_wrapper)
def _update_wrapper(tracer: Tracer, wrapper: Value, wrapped: Value, *args: Value, **kwargs: Value) -> Value:
    if not isinstance(wrapper, FunctionValue) or wrapper.fn is not None:
        raise unsupported("functools", f"functools.update_wrapper on {wrapper.describe(tracer)}")
    options = dict(zip(("assigned", "updated"), args, strict=False)) | kwargs
    defaults = {"assigned": functools.WRAPPER_ASSIGNMENTS, "updated": functools.WRAPPER_UPDATES}
    if any(tracer.constant_of(value, name) != defaults[name] for name, value in options.items()):
        raise unsupported("functools", "functools.update_wrapper with a choice of attributes")
    for name in functools.WRAPPER_ASSIGNMENTS:
        try:
            value = tracer.get_attr(wrapped, name)
        except Raised:
            continue
        wrapper.set_attr(tracer, name, value)
    if isinstance(wrapped, FunctionValue):
        for key, value in tracer.function_dict(wrapped).items(tracer):
            wrapper.set_attr(tracer, key.constant(), value)
    wrapper.set_attr(tracer, "__wrapped__", wrapped)
    return wrapper


# ---- sys ----


@calls(sys.exc_info)
def _exc_info(tracer: Tracer) -> Value:
    none = ConstantValue(None)
    if not tracer.handled:
        tracer.rely_on_nothing_handled()
        return TupleValue([none, none, none])
    error = tracer.handled[-1]
    return TupleValue([tracer.known(error.python_type(tracer)), error, tracer.get_attr(error, "__traceback__")])


@calls(sys.exception)
def _exception(tracer: Tracer) -> Value:
    if tracer.handled:
        return tracer.handled[-1]
    tracer.rely_on_nothing_handled()
    return ConstantValue(None)


# ---- weakref ----


@wraps(weakref.ReferenceType)
def _wrap_weakref(tracer: Tracer, obj: Any, source: Source | None) -> Value:
    if source is None:
        raise unsupported("unguardable", "a weak reference that cannot be reached from the frame")
    tracer.guard(source, GuardKind.TYPE, type(obj))
    return WeakReferenceValue(obj, source)


class WeakReferenceValue(Value):
    """A weak reference: calling it reads what it refers to."""

    __slots__ = ("reference",)

    def __init__(self, reference: Any, source: Source) -> None:
        self.source: Source = source
        self.reference = reference

    def python_type(self, tracer: Tracer) -> type:
        return type(self.reference)

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if type(self.reference) is not weakref.ref:
            raise unsupported("call", f"calling {self.describe(tracer)}, of a class of its own")
        referent = self.reference()
        if may_have_dropped(tracer, referent):
            raise unsupported("call", "asking a weak reference for an object that may have been dropped in the graph")
        return tracer.wrap(referent, CallSource(operator.call, (self.source,)))

    def builtin_method(self, tracer: Tracer, name: str) -> Any:
        """None of its methods is followed."""


@calls(weakref.ref)
def _make_weakref(tracer: Tracer, referent: Value, callback: Value | None = None) -> Value:
    if callback is not None and not tracer.is_none(callback):
        raise unsupported("new-object", "making a weak reference with a callback")
    if referent.source is None or not isinstance(referent, (ObjectValue, ModuleValue, DictValue, TensorValue)):
        raise unsupported("new-object", f"making a weak reference to {referent.describe(tracer)}")
    obj = referent.obj
    # code that reads it from a class which a function defined would keep that class, and so the object
    kept = is_about_made_class(referent.source)
    if kept or obj is None or not type(obj).__weakrefoffset__:
        raise unsupported("new-object", f"making a weak reference to {referent.describe(tracer)}")
    return MadeWeakReference(referent, obj)


class MadeWeakReference(Value):
    """`weakref.ref(object)` of an object from outside, made in the frame."""

    __slots__ = ("obj", "referent")

    def __init__(self, referent: Value, obj: Any) -> None:
        super().__init__(None)
        self.referent = referent
        self.obj = obj

    def python_type(self, tracer: Tracer) -> type:
        return weakref.ref

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if may_have_dropped(tracer, self.obj):
            raise unsupported("call", "asking a weak reference for an object that may have been dropped in the graph")
        return self.referent

    def builtin_method(self, tracer: Tracer, name: str) -> Any:
        """None of its methods is followed."""

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return CallRecipe(Constant(weakref.ref), [exits.recipe(self.referent)])


# ---- dataclasses ----


def _class_or_class_of(tracer: Tracer, value: Value) -> type:
    """The class that a value is, or else the class of the object."""
    try:
        cls = value.real()
    except NotConstant:
        cls = None
    return cls if isinstance(cls, type) else value.python_type(tracer)


@calls(dataclasses.is_dataclass)
def _is_dataclass(tracer: Tracer, value: Value) -> Value:
    return ConstantValue(dataclasses.is_dataclass(_class_or_class_of(tracer, value)))


@calls(dataclasses.fields)
def _fields(tracer: Tracer, value: Value) -> Value:
    cls = _class_or_class_of(tracer, value)
    found = tracer.run_real(dataclasses.fields, (cls,))
    entries = AttrSource(ConstantSource(full_name(cls), cls), "__dataclass_fields__")
    tracer.guard(entries, GuardKind.DICT_KEYS, tuple(getattr(cls, "__dataclass_fields__")))  # noqa: B009
    return TupleValue([tracer.wrap(field, ConstantSource(f"field {field.name}", field)) for field in found])


@calls(logging.getLogger)
def _get_logger(tracer: Tracer, name: Value | None = None) -> Value:
    logger = logging.getLogger(tracer.constant_of(name, "a logger's name") if name is not None else None)
    return tracer.wrap(logger, ConstantSource(f"logger {logger.name}", logger))


@calls(time.time, time.perf_counter, time.monotonic, time.time_ns)
def _clock(tracer: Tracer) -> Value:
    raise unsupported("call-builtin", "reading the clock")


@calls(contextlib.suppress)
def _suppress(tracer: Tracer, *classes: Value) -> Value:
    made = ObjectValue(contextlib.suppress)
    made.set_own(tracer, "_exceptions", TupleValue(list(classes)))
    return made


@calls(typing.get_type_hints)
def _type_hints(tracer: Tracer, obj: Value, *args: Value, **kwargs: Value) -> Value:
    """Followed for functions; of classes it goes through what each may change at any time, and evaluates text."""
    if not isinstance(obj, FunctionValue):
        raise unsupported("call-builtin", f"typing.get_type_hints of {obj.describe(tracer)}")
    asked = tracer.known(typing.get_type_hints)
    assert isinstance(asked, FunctionValue)
    return tracer.inline(asked, [obj, *args], kwargs)
