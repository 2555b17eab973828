"""The descriptor protocol: class attributes as seen through an instance or through the class itself."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch

from stator.dynamo.cache.entry import is_entry
from stator.dynamo.guards.source import AttrSource, ConstantSource
from stator.dynamo.host.naming import class_name, full_name, qualified_name
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.functions import BoundMethodValue, BuiltinMethodValue, BuiltinValue
from stator.dynamo.values.objects import CYTHON_FUNCTION, MISSING, owner_in_class


def bind(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    """`raw` from the class dictionary as an attribute of the instance `owner` (descriptor protocol)."""
    kind = type(raw)
    if kind is FunctionType or is_entry(raw):
        return BoundMethodValue(context.class_function(cls, name, raw), owner)
    binder = _BINDERS.get(kind)
    if binder is not None:
        return binder(context, owner, cls, name, raw)
    getter = context.class_lookup(kind, "__get__")
    if getter is MISSING or kind is types.MethodType:  # since 3.13, bound methods have a `__get__` that returns them
        return context.class_value(cls, name)
    if class_name(kind) == CYTHON_FUNCTION:  # Cython functions bind as Python functions do
        return BoundMethodValue(context.class_value(cls, name), owner)
    for base in kind.__mro__[1:]:
        if base in _BINDERS and base.__dict__.get("__get__") is getter:  # a subclass that inherits `__get__`
            return _BINDERS[base](context, owner, cls, name, raw)
    if type(getter) is FunctionType:
        descriptor = context.class_value(cls, name)
        function = context.class_function(kind, "__get__", getter)
        return function.call(context, [descriptor, owner, context.known(cls)], {})
    raise unsupported("descriptor", f"the descriptor {class_name(kind)} for attribute {name!r} of {class_name(cls)}")


def bind_to_class(context: CaptureContext, cls_value: ClassValue, name: str, raw: Any) -> Value:
    """`raw` as an attribute of the class itself."""
    cls = cls_value.cls
    if type(raw) is FunctionType or is_entry(raw):
        return context.class_function(cls, name, raw)
    if isinstance(raw, staticmethod):
        return _bind_static(context, cls_value, cls, name, raw)
    if isinstance(raw, classmethod):
        return bind_class_method(context, cls_value, cls, name, raw)
    if isinstance(raw, (types.ClassMethodDescriptorType, types.BuiltinFunctionType)):
        return BuiltinValue(getattr(cls, name))
    if isinstance(raw, _C_DESCRIPTORS):
        return BuiltinValue(raw)
    getter = context.class_lookup(type(raw), "__get__")
    if type(getter) is FunctionType:
        function = context.class_function(type(raw), "__get__", getter)
        return function.call(context, [context.class_value(cls, name), context.constant(None), cls_value], {})
    return context.class_value(cls, name)


def _bind_property(context: CaptureContext, owner: Value, cls: type, name: str, raw: property) -> Value:
    if raw.fget is None:
        raise context.raised(AttributeError, f"property '{name}' of '{qualified_name(cls)}' object has no getter")
    if type(raw.fget) is not FunctionType:
        return context.call(context.known(raw.fget), [owner], {})
    function = context.class_function(cls, name, raw.fget)
    return function.call(context, [owner], {})


def _bind_static(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    function = raw.__func__
    defining = owner_in_class(cls, name)
    defining = cls if defining is None else defining  # a class may have a truth value of its own
    source = AttrSource(ConstantSource(full_name(defining), defining), name)
    return context.wrap(function, source)


def _bind_class_method(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    return bind_class_method(context, context.known(owner.python_type(context)), cls, name, raw)


def bind_class_method(context: CaptureContext, target: Value, cls: type, name: str, raw: Any) -> Value:
    """`classmethod.__get__` for the class `target`. Up to CPython 3.12 the wrapped object's own `__get__` runs; capture
    follows only objects that bind as functions do, or not at all."""
    inner = raw.__func__
    kind = type(inner)
    if not (kind in _BIND_AS_FUNCTIONS or is_entry(inner) or class_name(kind) == CYTHON_FUNCTION):
        binds = sys.version_info < (3, 13) and context.class_lookup(kind, "__get__") is not MISSING
        if binds or context.class_lookup(kind, "__call__") is MISSING:
            raise unsupported("descriptor", f"the class method {name!r} of {class_name(cls)}, of a {class_name(kind)}")
    return BoundMethodValue(context.class_function(cls, name, inner), target)


def _bind_cached_property(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    value = context.class_function(cls, name, raw.func).call(context, [owner], {})
    owner.set_own(context, name, value)  # type: ignore[attr-defined]
    return value


def _bind_slot(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    return owner.slot(context, name, raw)  # type: ignore[attr-defined]


def _bind_c_method(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    return BuiltinMethodValue(owner, name)


def _bind_named_field(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    at = raw.__reduce__()[1][0]
    assert isinstance(owner, TupleValue)
    return owner.at(context, at)


def _bind_cached_function(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    return BoundMethodValue(context.class_value(cls, name), owner)


def _bind_builtin(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    return context.known(raw)


def _bind_pybind_method(context: CaptureContext, owner: Value, cls: type, name: str, raw: Any) -> Value:
    return BoundMethodValue(context.known(raw.__func__), owner)


class _Pair(NamedTuple):
    first: int


_C_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    property,
    functools.cached_property,
)
_BIND_AS_FUNCTIONS = frozenset({FunctionType, functools._lru_cache_wrapper})
_BINDERS: dict[type, Callable[[CaptureContext, Value, type, str, Any], Value]] = {
    property: _bind_property,
    staticmethod: _bind_static,
    classmethod: _bind_class_method,
    functools.cached_property: _bind_cached_property,
    types.MemberDescriptorType: _bind_slot,
    types.GetSetDescriptorType: _bind_slot,
    types.MethodDescriptorType: _bind_c_method,
    types.WrapperDescriptorType: _bind_c_method,
    types.ClassMethodDescriptorType: _bind_c_method,
    types.BuiltinFunctionType: _bind_builtin,
    type(_Pair.first): _bind_named_field,
    functools._lru_cache_wrapper: _bind_cached_function,
    type: _bind_builtin,
    type(vars(torch._C.Graph)["nodes"]): _bind_pybind_method,
}
