"""`copy.copy` and `copy.deepcopy` of constants and plain containers. Everything else is copied outside of graphs."""

from __future__ import annotations

import copy
import enum
import operator
from collections import OrderedDict

from stator.dynamo.host.naming import is_python_class
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue, combined
from stator.dynamo.values.functions import BuiltinValue, FunctionValue
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber


@calls(copy.copy)
def _copy(context: CaptureContext, value: Value) -> Value:
    if _is_its_own_copy(value) or (isinstance(value, TupleValue) and value.cls is tuple):
        return value
    if isinstance(value, ListValue) and value.cls is list:
        return ListValue(list(value.items))
    if isinstance(value, SetValue) and value.cls is set:
        return combined(context, value, "copy")
    if isinstance(value, DictValue) and value.cls in (dict, OrderedDict) and not value.own_names(context):
        made = DictValue({}, cls=value.cls)
        for key, item in value.items(context):
            made.put(context, key, item)
        return made
    if type(value) is ObjectValue:
        method = value.special(context, "__copy__")
        if method is not None:
            return method.call(context, [], {})
    raise unsupported("copy", f"copy.copy of {value.describe(context)}")


def _is_its_own_copy(value: Value) -> bool:
    """Functions and constants, except instances of the program's own classes of numbers or text."""
    if type(value) is SymbolicNumber:
        return True
    if isinstance(value, ConstantValue):
        kind = type(value.value)
        return not is_python_class(kind) or issubclass(kind, enum.Enum)
    return isinstance(value, (FunctionValue, BuiltinValue))


@calls(copy.deepcopy)
def _deepcopy(context: CaptureContext, value: Value, memo: Value | None = None) -> Value:
    if memo is not None and not context.is_none(memo):
        raise unsupported("copy", "copy.deepcopy with a memo of the caller")
    return _deep(context, value, {})


def _deep(context: CaptureContext, value: Value, copies: dict[int, Value]) -> Value:
    """`copies`: made so far, by the id of the original."""
    value = context.realized(value)
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, ConstantValue) and type(value.value) in (tuple, frozenset):
        if copy.deepcopy(value.value) is value.value:  # a frozenset inside gives another one
            return value
    elif _is_its_own_copy(value):
        return value
    if isinstance(value, TupleValue) and value.cls is tuple:
        items = [_deep(context, item, copies) for item in value.items]
        if all(map(operator.is_, items, map(context.realized, value.items))):
            return value
        if value.source is None and id(value) not in copies:
            copies[id(value)] = made_tuple = TupleValue(items)
            return made_tuple
    if isinstance(value, ListValue) and value.cls is list:
        made_list = copies[id(value)] = ListValue([])
        made_list.items.extend(_deep(context, item, copies) for item in value.items)
        return made_list
    if isinstance(value, DictValue) and value.cls in (dict, OrderedDict) and not value.own_names(context):
        made = copies[id(value)] = DictValue({}, cls=value.cls)
        for key, item in value.items(context):
            made.put(context, _deep(context, key, copies), _deep(context, item, copies))
        return made
    raise unsupported("copy", f"copy.deepcopy of {value.describe(context)}")
