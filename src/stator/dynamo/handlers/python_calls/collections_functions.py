"""Calls of list, dict, set, tuple and of classes of `collections`; functools.reduce."""

from __future__ import annotations

import collections
import functools
from collections import OrderedDict, defaultdict, deque
from types import MappingProxyType
from typing import Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, Source
from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.calling import calls, handlers, polyfill
from stator.dynamo.interpreter.object_model.iteration import may_iterate
from stator.dynamo.interpreter.wrapping import wrappers, wraps
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.deques import DequeValue, new_deque
from stator.dynamo.values.containers.mappings import DictValue, MappingProxyValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.objects import MISSING


@calls(functools.reduce)
def _reduce(context: CaptureContext, function: Value, iterable: Value, initial: Value | None = None) -> Value:
    if not may_iterate(context, iterable):
        raise unsupported("call-builtin", f"reduce() of {iterable.describe(context)}")
    iterator = context.iterator(iterable)
    total = initial
    while (item := context.next_item(iterator)) is not None:
        total = item if total is None else context.call(function, [total, item], {})
    if total is None:
        raise context.raised(TypeError, "reduce() of empty iterable with no initial value")
    return total


@calls(tuple)
def _tuple(context: CaptureContext, items: Value | None = None) -> Value:
    if isinstance(items, TupleValue) and items.cls is tuple:
        return items
    return TupleValue(list(context.listed(items)) if items is not None else [])


@calls(frozenset)
def _frozenset(context: CaptureContext, items: Value | None = None) -> Value:
    if items is not None and items.python_type(context) is frozenset:
        return items
    return SetValue.from_items(context, items, frozenset) if items is not None else SetValue.of(context, [], frozenset)


def _filled(context: CaptureContext, made: DictValue, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1:
        raise unsupported("call-builtin", f"{class_name(made.cls)}() of more than one mapping")
    for more in args:
        if isinstance(more, DictValue) and more.special(context, "keys") is None:
            entries = list(more.items(context))
        elif context.class_lookup(more.python_type(context), "keys") is not None and _is_mapping(context, more):
            entries = context.mapping_items(more)
        else:
            entries = list(context.pairs(more))
        for key, value in entries:
            made.put(context, key, value)
    for name, value in kwargs.items():
        made.put(context, ConstantValue(name), value)
    return made


def _is_mapping(context: CaptureContext, value: Value) -> bool:
    return hasattr(value.python_type(context), "keys")


@calls(MappingProxyType)
def _mapping_proxy(context: CaptureContext, mapping: Value) -> Value:
    if not isinstance(mapping, DictValue) or mapping.cls not in (dict, OrderedDict):
        raise unsupported("new-object", f"a read-only view of {mapping.describe(context)}")
    return MappingProxyValue(mapping)


@calls(defaultdict)
def _defaultdict(context: CaptureContext, factory: Value | None = None, *args: Value, **kwargs: Value) -> Value:
    none = factory is None or context.is_none(factory)
    if not none and context.class_lookup(factory.python_type(context), "__call__") is MISSING:  # type: ignore[union-attr]
        raise context.raised(TypeError, "first argument must be callable or None")
    return _filled(context, DictValue({}, cls=defaultdict, factory=factory), args, kwargs)


@calls(dict.fromkeys)
def _fromkeys(context: CaptureContext, keys: Value, value: Value | None = None) -> Value:
    made = DictValue({})
    for key in context.iterate(keys):
        made.put(context, key, value or ConstantValue(None))
    return made


@polyfill(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(mapping: Any, iterable: Any, /) -> None:
    for item in iterable:
        mapping[item] = mapping.get(item, 0) + 1


calls(deque)(new_deque)


@wraps(deque)
def _found_deque(context: CaptureContext, obj: deque[Any], source: Source | None) -> Value:
    if type(obj) is not deque or source is None:
        return wrappers[object](context, obj, source)
    context.guard(source, GuardKind.TYPE, deque)
    context.guard(AttrSource(source, "maxlen"), GuardKind.EQUALS, obj.maxlen)
    return DequeValue(obj.maxlen, obj, source)


handlers.add_all(
    {
        list: lambda context, items=None: ListValue(list(context.listed(items)) if items is not None else []),
        set: lambda context, items=None: (
            SetValue.from_items(context, items) if items is not None else SetValue.of(context, [])
        ),
        dict: lambda context, *args, **kwargs: _filled(context, DictValue({}), args, kwargs),
        OrderedDict: lambda context, *args, **kwargs: _filled(context, DictValue({}, cls=OrderedDict), args, kwargs),
    }
)
