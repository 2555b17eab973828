"""Functions of the standard library: functools, math, inspect, and what may be folded."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
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

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, CallSource, ConstantSource, ReadSource, is_in_local_class
from stator.dynamo.host.naming import full_name
from stator.dynamo.host.numpy_scalars import numpy_numbers
from stator.dynamo.interpreter.calling import calls, fold
from stator.dynamo.interpreter.object_model.external_liveness import may_have_dropped
from stator.dynamo.interpreter.wrapping import wrappers, wraps
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe
from stator.dynamo.values.base import NotConstant, Raised, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.context_variables import ContextVariable
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.modules import ModuleValue
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.partials import PartialValue
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.guards.source import Source
    from stator.dynamo.values.base import CaptureContext, Reconstructor

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
def _maketrans(context: CaptureContext, *given: Value) -> Value:
    what = "an argument of str.maketrans"
    if len(given) == 1 and context.realized(given[0]).python_type(context) is dict:
        pairs = list(context.pairs(given[0]))
        real: tuple[Any, ...] = ({context.constant_of(key, what): context.constant_of(to, what) for key, to in pairs},)
    else:
        real = tuple(context.constant_of(one, what) for one in given)
    made = context.run_real(str.maketrans, real)
    return context.dict_of([ConstantValue(part) for pair in made.items() for part in pair])


def _asks_for_type(function: Any, kind: type) -> None:
    def handler(context: CaptureContext, value: Value) -> Value:
        return ConstantValue(issubclass(value.python_type(context), kind))

    calls(function)(handler)


_asks_for_type(inspect.isclass, type)
_asks_for_type(inspect.isfunction, types.FunctionType)


def _may_change(function: Any) -> None:
    """A fact of the process or thread that is read in each call anew."""

    def handler(context: CaptureContext) -> Value:
        return context.wrap(function(), ReadSource(function))

    calls(function)(handler)


for _fact in (os.getpid, sys.getrecursionlimit, threading.get_ident):
    _may_change(_fact)


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
    return PartialValue(function, list(from_args.items), named, source, obj)


@wraps(ContextVar)
def _wrap_context_variable(context: CaptureContext, obj: ContextVar[Any], source: Source | None) -> Value:
    if source is None:
        source = ConstantSource(obj.name, obj)
    context.guard(source, GuardKind.IS, obj)
    return ContextVariable(obj, source)


@calls(functools.update_wrapper)
def _update_wrapper(context: CaptureContext, wrapper: Value, wrapped: Value, *args: Value, **kwargs: Value) -> Value:
    if not isinstance(wrapper, FunctionValue) or wrapper.fn is not None:
        raise unsupported("functools", f"functools.update_wrapper on {wrapper.describe(context)}")
    options = dict(zip(("assigned", "updated"), args, strict=False)) | kwargs
    defaults = {"assigned": functools.WRAPPER_ASSIGNMENTS, "updated": functools.WRAPPER_UPDATES}
    if any(context.constant_of(value, name) != defaults[name] for name, value in options.items()):
        raise unsupported("functools", "functools.update_wrapper with a choice of attributes")
    for name in functools.WRAPPER_ASSIGNMENTS:
        try:
            value = context.get_attr(wrapped, name)
        except Raised:
            continue
        wrapper.set_attr(context, name, value)
    if isinstance(wrapped, FunctionValue):
        for key, value in context.function_dict(wrapped).items(context):
            wrapper.set_attr(context, key.constant(), value)
    wrapper.set_attr(context, "__wrapped__", wrapped)
    return wrapper


# ---- sys ----


@calls(sys.exc_info)
def _exc_info(context: CaptureContext) -> Value:
    none = ConstantValue(None)
    if not context.handled:
        context.rely_on_nothing_handled()
        return TupleValue([none, none, none])
    error = context.handled[-1]
    return TupleValue([context.known(error.python_type(context)), error, context.get_attr(error, "__traceback__")])


@calls(sys.exception)
def _exception(context: CaptureContext) -> Value:
    if context.handled:
        return context.handled[-1]
    context.rely_on_nothing_handled()
    return ConstantValue(None)


# ---- weakref ----


@wraps(weakref.ReferenceType)
def _wrap_weakref(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    if source is None:
        raise unsupported("unguardable", "a weak reference that cannot be reached from the frame")
    context.guard(source, GuardKind.TYPE, type(obj))
    return WeakReferenceValue(obj, source)


class WeakReferenceValue(Value):
    """A weak reference: calling it reads what it refers to."""

    __slots__ = ("reference",)

    def __init__(self, reference: Any, source: Source) -> None:
        self.source: Source = source
        self.reference = reference

    def python_type(self, context: CaptureContext) -> type:
        return type(self.reference)

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if type(self.reference) is not weakref.ref:
            raise unsupported("call", f"calling {self.describe(context)}, of a class of its own")
        referent = self.reference()
        if may_have_dropped(context, referent):
            raise unsupported("call", "asking a weak reference for an object that may have been dropped in the graph")
        return context.wrap(referent, CallSource(operator.call, (self.source,)))

    def builtin_method(self, context: CaptureContext, name: str) -> Any:
        """None of its methods is followed."""


@calls(weakref.ref)
def _make_weakref(context: CaptureContext, referent: Value, callback: Value | None = None) -> Value:
    if callback is not None and not context.is_none(callback):
        raise unsupported("new-object", "making a weak reference with a callback")
    if referent.source is None or not isinstance(referent, (ObjectValue, ModuleValue, DictValue, TensorValue)):
        raise unsupported("new-object", f"making a weak reference to {referent.describe(context)}")
    obj = referent.obj
    # code that reads it from a class which a function defined would keep that class, and so the object
    kept = is_in_local_class(referent.source)
    if kept or obj is None or not type(obj).__weakrefoffset__:
        raise unsupported("new-object", f"making a weak reference to {referent.describe(context)}")
    return MadeWeakReference(referent, obj)


class MadeWeakReference(Value):
    """`weakref.ref(object)` of an object from outside, made in the frame."""

    __slots__ = ("obj", "referent")

    def __init__(self, referent: Value, obj: Any) -> None:
        super().__init__(None)
        self.referent = referent
        self.obj = obj

    def python_type(self, context: CaptureContext) -> type:
        return weakref.ref

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if may_have_dropped(context, self.obj):
            raise unsupported("call", "asking a weak reference for an object that may have been dropped in the graph")
        return self.referent

    def builtin_method(self, context: CaptureContext, name: str) -> Any:
        """None of its methods is followed."""

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return CallRecipe(ConstantRecipe(weakref.ref), [reconstructor.recipe(self.referent)])


# ---- dataclasses ----


def _class_or_class_of(context: CaptureContext, value: Value) -> type:
    """The class that a value is, or else the class of the object."""
    try:
        cls = value.real()
    except NotConstant:
        cls = None
    return cls if isinstance(cls, type) else value.python_type(context)


@calls(dataclasses.is_dataclass)
def _is_dataclass(context: CaptureContext, value: Value) -> Value:
    return ConstantValue(dataclasses.is_dataclass(_class_or_class_of(context, value)))


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


@calls(time.time, time.perf_counter, time.monotonic, time.time_ns)
def _clock(context: CaptureContext) -> Value:
    raise unsupported("call-builtin", "reading the clock")


@calls(json.dumps, json.loads)
def _json(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    raise unsupported("call-builtin", "JSON text, which would be guarded whole")


@calls(contextlib.suppress)
def _suppress(context: CaptureContext, *classes: Value) -> Value:
    made = ObjectValue(contextlib.suppress)
    made.set_own(context, "_exceptions", TupleValue(list(classes)))
    return made


@calls(typing.get_type_hints)
def _type_hints(context: CaptureContext, obj: Value, *args: Value, **kwargs: Value) -> Value:
    """Followed for functions; of classes it goes through what each may change at any time, and evaluates text."""
    if not isinstance(obj, FunctionValue):
        raise unsupported("call-builtin", f"typing.get_type_hints of {obj.describe(context)}")
    asked = context.known(typing.get_type_hints)
    assert isinstance(asked, FunctionValue)
    return context.inline(asked, [obj, *args], kwargs)
