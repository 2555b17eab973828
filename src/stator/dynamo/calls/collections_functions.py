"""list, dict, set, tuple and the classes of `collections` when called."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ..calling import calls
from ..finishing import DIRECTLY, Finish, Way, called
from ..iteration import may_iterate
from ..naming import class_name
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue
from ..values.deques import DequeValue
from ..values.functions import BuiltinValue
from ..values.iterators import rest_of
from ..values.mappings import DictValue
from ..values.objects import MISSING
from ..values.sequences import ListValue, TupleValue
from ..values.sets import SetValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@calls(functools.reduce)
def _reduce(tracer: Tracer, function: Value, iterable: Value, initial: Value | None = None) -> Value:
    way = _way_of_reduce(tracer, function, initial is not None)
    if not may_iterate(tracer, iterable):
        raise unsupported("call-builtin", f"reduce() of {iterable.describe(tracer)}")
    iterator = tracer.iterator(iterable)
    total = initial
    while (item := tracer.next_item(iterator)) is not None:
        if total is None:
            total = item
            continue
        if way is not None:
            tracer.enters(function, replace(way, below=(*way.below, rest_of(iterator))))
        total = tracer.call(function, [total, item], {})
    if total is None:
        raise tracer.raised(TypeError, "reduce() of empty iterable with no initial value")
    return total


def _way_of_reduce(tracer: Tracer, function: Value, has_initial: bool) -> Way | None:
    """How an instruction enters the function that it reduces by, if it does nothing else."""
    callee = tracer.direct
    if not isinstance(callee, BuiltinValue) or callee.fn is not functools.reduce or tracer.way is not DIRECTLY:
        return None
    if not tracer.is_call_of(3 if has_initial else 2):
        return None
    return Way(Finish.REDUCED_FROM if has_initial else Finish.REDUCED, (*called(callee), function))


@calls(list)
def _list(tracer: Tracer, items: Value | None = None) -> Value:
    return ListValue(list(tracer.listed(items)) if items is not None else [])


@calls(tuple)
def _tuple(tracer: Tracer, items: Value | None = None) -> Value:
    if isinstance(items, TupleValue) and items.cls is tuple:
        return items
    return TupleValue(list(tracer.listed(items)) if items is not None else [])


@calls(set)
def _set(tracer: Tracer, items: Value | None = None) -> Value:
    return SetValue.from_items(tracer, items) if items is not None else SetValue({})


@calls(frozenset)
def _frozenset(tracer: Tracer, items: Value | None = None) -> Value:
    if isinstance(items, SetValue) and items.cls is frozenset:
        return items
    return SetValue.from_items(tracer, items, frozenset) if items is not None else SetValue({}, cls=frozenset)


def _filled(tracer: Tracer, made: DictValue, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1:
        raise unsupported("call-builtin", f"{class_name(made.cls)}() of more than one mapping")
    for more in args:
        if isinstance(more, DictValue) and more.special(tracer, "keys") is None:
            entries = list(more.items(tracer))
        elif tracer.class_lookup(more.python_type(tracer), "keys") is not None and _is_mapping(tracer, more):
            entries = tracer.mapping_items(more)
        else:
            entries = list(tracer.pairs(more))
        for key, value in entries:
            made.put(tracer, key, value)
    for name, value in kwargs.items():
        made.put(tracer, ConstantValue(name), value)
    return made


def _is_mapping(tracer: Tracer, value: Value) -> bool:
    return hasattr(value.python_type(tracer), "keys")


@calls(dict)
def _dict(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    return _filled(tracer, DictValue({}), args, kwargs)


@calls(OrderedDict)
def _ordered_dict(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    return _filled(tracer, DictValue({}, cls=OrderedDict), args, kwargs)


@calls(defaultdict)
def _defaultdict(tracer: Tracer, factory: Value | None = None, *args: Value, **kwargs: Value) -> Value:
    none = factory is None or tracer.is_none(factory)
    if not none and tracer.class_lookup(factory.python_type(tracer), "__call__") is MISSING:  # type: ignore[union-attr]
        raise tracer.raised(TypeError, "first argument must be callable or None")
    return _filled(tracer, DictValue({}, cls=defaultdict, factory=factory), args, kwargs)


@calls(dict.fromkeys)
def _fromkeys(tracer: Tracer, keys: Value, value: Value | None = None) -> Value:
    return _filled_with(tracer, DictValue({}), keys, value)


@calls(OrderedDict.fromkeys)
def _ordered_dict_fromkeys(tracer: Tracer, keys: Value, value: Value | None = None) -> Value:
    return _filled_with(tracer, DictValue({}, cls=OrderedDict), keys, value)


@calls(defaultdict.fromkeys)
def _defaultdict_fromkeys(tracer: Tracer, keys: Value, value: Value | None = None) -> Value:
    return _filled_with(tracer, DictValue({}, cls=defaultdict), keys, value)


def _filled_with(tracer: Tracer, made: DictValue, keys: Value, value: Value | None) -> Value:
    for key in tracer.iterate(keys):
        made.put(tracer, key, value or ConstantValue(None))
    return made


@calls(deque)
def _deque(tracer: Tracer, items: Value | None = None, maxlen: Value | None = None) -> Value:
    most = None
    if maxlen is not None and not tracer.is_none(maxlen):
        if tracer.class_lookup(maxlen.python_type(tracer), "__index__") is MISSING:
            raise unsupported("call-builtin", f"deque() of {maxlen.describe(tracer)} items at most")
        most = tracer.index_of(maxlen)
        if most < 0:
            raise tracer.raised(ValueError, "maxlen must be non-negative")
    return DequeValue(list(tracer.iterate(items)) if items is not None else [], cls=deque, maxlen=most)
