"""Functions of the standard library: functools, math, copy, inspect, and what may be folded."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import dataclasses
import enum
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
from collections import OrderedDict, defaultdict
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

from ..calling import calls, fold
from ..dropped import may_have_dropped
from ..guard import GuardKind
from ..naming import full_name
from ..plain import is_of_program, numpy_numbers
from ..recipe import CallRecipe, Constant, Recipe
from ..source import AttrSource, CallSource, ConstantSource, ReadSource, is_about_made_class
from ..values.base import NotConstant, Raised, Value, unsupported
from ..values.constants import ConstantValue
from ..values.context_variables import ContextVariable
from ..values.functions import BuiltinValue, FunctionValue
from ..values.mappings import DictValue
from ..values.modules import ModuleValue
from ..values.objects import MISSING, ObjectValue, lookup_in_class
from ..values.partials import PartialValue
from ..values.sequences import ListValue, TupleValue
from ..values.sets import SetValue, combined
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


# ---- copy ----


@calls(copy.copy)
def _copy(tracer: Tracer, value: Value) -> Value:
    if _is_its_own_copy(value) or _is_plain_tuple(value):
        return value
    if isinstance(value, ListValue) and value.cls is list:
        return ListValue(list(value.items))
    if isinstance(value, SetValue) and value.cls in (set, frozenset):
        return value if value.cls is frozenset else combined(value, "copy", dict(value.members))
    if isinstance(value, DictValue) and value.cls in (dict, OrderedDict, defaultdict):
        made = DictValue({}, cls=value.cls, factory=value.factory)
        for key, item in value.items(tracer):
            made.put(tracer, key, item)
        for name in value.own_names(tracer) if value.cls is OrderedDict else ():
            made.set_own(tracer, name, value.own_attribute(tracer, name))
        return made
    if type(value) is ObjectValue:
        method = value.special(tracer, "__copy__")
        if method is not None:
            return method.call(tracer, [], {})
        _rely_on_default_copying(tracer, value, "copy.copy")
        twin = ObjectValue(value.cls)
        for name in value.own_names(tracer):
            twin.set_own(tracer, name, value.own_attribute(tracer, name))
        return twin
    raise unsupported("copy", f"copy.copy of {value.describe(tracer)}")


def _is_its_own_copy(value: Value) -> bool:
    """Functions and constants; not what is made of a program's own class of numbers or text."""
    if isinstance(value, ConstantValue):
        kind = type(value.value)
        return not is_of_program(kind) or issubclass(kind, enum.Enum)
    return isinstance(value, (FunctionValue, BuiltinValue))


def _is_plain_tuple(value: Value) -> bool:
    return isinstance(value, TupleValue) and value.cls is tuple


@calls(copy.deepcopy)
def _deepcopy(tracer: Tracer, value: Value, memo: Value | None = None) -> Value:
    if memo is not None and not tracer.is_none(memo):
        raise unsupported("copy", "copy.deepcopy with a memo of the caller")
    return _deep(tracer, value, {})


def _deep(tracer: Tracer, value: Value, memo: dict[int, Value]) -> Value:
    value = tracer.realized(value)
    if id(value) in memo:
        return memo[id(value)]
    if _is_its_own_copy(value):
        return value
    if isinstance(value, TensorValue):
        memo[id(value)] = made_tensor = _deep_tensor(tracer, value)
        return made_tensor
    if isinstance(value, ListValue) and value.cls is list:
        made_list = memo[id(value)] = ListValue([])
        made_list.items.extend(_deep(tracer, item, memo) for item in value.items)
        return made_list
    if isinstance(value, TupleValue) and (value.cls is tuple or value.is_named):
        items = [_deep(tracer, item, memo) for item in value.items]
        if id(value) in memo:  # it holds itself
            return memo[id(value)]
        if value.cls is tuple and all(map(operator.is_, items, map(tracer.realized, value.items))):
            return value
        memo[id(value)] = made_tuple = TupleValue(items, cls=value.cls)
        return made_tuple
    ordered = isinstance(value, DictValue) and value.cls is OrderedDict and value.own_names(tracer)
    if isinstance(value, DictValue) and value.cls in (dict, OrderedDict, defaultdict) and not ordered:
        made = memo[id(value)] = DictValue({}, cls=value.cls, factory=value.factory)
        for key, item in value.items(tracer):
            made.put(tracer, _deep(tracer, key, memo), _deep(tracer, item, memo))
        return made
    if isinstance(value, SetValue) and value.cls in (set, frozenset) and value.is_constant():
        return value if value.cls is frozenset else combined(value, "copy", dict(value.members))
    if type(value) is ObjectValue:
        return _deep_object(tracer, value, memo)
    raise unsupported("copy", f"copy.deepcopy of {value.describe(tracer)}")


_COPY_HOOKS = (
    *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
    *("__getnewargs__", "__getnewargs_ex__", "__slots__", "__new__"),
)


def _rely_on_default_copying(tracer: Tracer, value: ObjectValue, what: str) -> None:
    """Copying makes an object of the class and fills its `__dict__`: unless its class says otherwise."""
    own = [name for name in _COPY_HOOKS if tracer.class_lookup(value.cls, name) is not lookup_in_class(object, name)]
    if _in_its_own_way(tracer, value):
        if what == "copy.deepcopy" and _is_answered(tracer, value, "__deepcopy__"):
            own.append("__deepcopy__")
        if not _is_answered(tracer, value, "__reduce_ex__"):
            own.append("attributes without __reduce_ex__")
        if _is_answered(tracer, ObjectValue(value.cls), "__setstate__"):
            own.append("__setstate__")
    if value.cls in copyreg.dispatch_table:
        own.append("an entry of copyreg")
    if not all(map(is_of_program, value.cls.__mro__[:-1])):
        own.append("a part in C")
    if own:
        raise unsupported("copy", f"{what} of {value.describe(tracer)}, which defines {', '.join(own)}")


def _in_its_own_way(tracer: Tracer, value: ObjectValue) -> bool:
    looks = tracer.class_lookup(value.cls, "__getattribute__") is not object.__getattribute__
    return looks or tracer.class_lookup(value.cls, "__getattr__") is not MISSING


def _is_answered(tracer: Tracer, value: ObjectValue, name: str) -> bool:
    """hasattr(value, name), which runs code of the class."""
    try:
        value.get_attr(tracer, name)
    except Raised as raised:
        if not issubclass(raised.value.python_type(tracer), AttributeError):
            raise
        return False
    return True


def _deep_tensor(tracer: Tracer, value: TensorValue) -> Value:
    """A copy of its memory, which of a dense tensor is a clone."""
    fake = value.fake
    dense = fake.is_contiguous() or (fake.dim() == 4 and fake.is_contiguous(memory_format=torch.channels_last))
    if value.cls is not torch.Tensor or fake.requires_grad or not dense:
        raise unsupported("copy", f"copy.deepcopy of {value.describe(tracer)}")
    return tracer.record_method("clone", [value], {})


def _deep_object(tracer: Tracer, value: ObjectValue, memo: dict[int, Value]) -> Value:
    method = value.special(tracer, "__deepcopy__")
    if method is not None:
        return method.call(tracer, [DictValue({})], {})
    _rely_on_default_copying(tracer, value, "copy.deepcopy")
    twin = memo[id(value)] = ObjectValue(value.cls)
    for name in value.own_names(tracer):
        attribute = value.own_attribute(tracer, name)
        assert attribute is not None
        twin.set_own(tracer, name, _deep(tracer, attribute, memo))
    return twin


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
