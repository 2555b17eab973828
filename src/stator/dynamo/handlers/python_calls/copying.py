"""`copy.copy` and `copy.deepcopy` of plain containers and objects. Everything else is copied outside of graphs."""

from __future__ import annotations

import copy
import copyreg
import enum
import operator
from collections import OrderedDict

from stator.dynamo.host.naming import is_python_class
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import CaptureContext, Raised, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue, combined
from stator.dynamo.values.functions import BuiltinValue, FunctionValue
from stator.dynamo.values.objects import MISSING, ObjectValue, lookup_in_class
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
        _rely_on_default_copying(context, value, "copy.copy")
        twin = ObjectValue(value.cls)
        for name in value.own_names(context):
            twin.set_own(context, name, value.own_attribute(context, name))
        return twin
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
    if isinstance(value, SetValue) and value.cls is set and value.is_constant():
        made_set = copies[id(value)] = combined(context, value, "copy")
        return made_set
    if type(value) is ObjectValue and value.special(context, "__deepcopy__") is None:
        _rely_on_default_copying(context, value, "copy.deepcopy")
        twin = copies[id(value)] = ObjectValue(value.cls)
        for name in value.own_names(context):
            attribute = value.own_attribute(context, name)
            assert attribute is not None
            twin.set_own(context, name, _deep(context, attribute, copies))
        return twin
    raise unsupported("copy", f"copy.deepcopy of {value.describe(context)}")


_COPY_HOOKS = (
    *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
    *("__getnewargs__", "__getnewargs_ex__", "__slots__", "__new__"),
)


def _rely_on_default_copying(context: CaptureContext, value: ObjectValue, what: str) -> None:
    """Copying makes an object of the class and fills its `__dict__`, unless the class or the object says otherwise."""
    own = [name for name in _COPY_HOOKS if context.class_lookup(value.cls, name) is not lookup_in_class(object, name)]
    own += [name for name in ("__copy__", "__deepcopy__") if name in value.own_names(context)]
    if _computes_attributes(context, value):  # as the configurations of transformers do
        own += ["__deepcopy__"] if what == "copy.deepcopy" and _has_attribute(context, value, "__deepcopy__") else []
        own += ["__setstate__"] if _has_attribute(context, ObjectValue(value.cls), "__setstate__") else []
        own += [] if _has_attribute(context, value, "__reduce_ex__") else ["attributes without __reduce_ex__"]
    if value.cls in copyreg.dispatch_table:
        own.append("an entry of copyreg")
    if not all(map(is_python_class, value.cls.__mro__[:-1])):
        own.append("a part in C")
    if own:
        raise unsupported("copy", f"{what} of {value.describe(context)}, which defines {', '.join(own)}")


def _computes_attributes(context: CaptureContext, value: ObjectValue) -> bool:
    looks = context.class_lookup(value.cls, "__getattribute__") is not object.__getattribute__
    return looks or context.class_lookup(value.cls, "__getattr__") is not MISSING


def _has_attribute(context: CaptureContext, value: ObjectValue, name: str) -> bool:
    """hasattr(value, name), which runs code of the class."""
    try:
        value.get_attr(context, name)
    except Raised as raised:
        if not issubclass(raised.value.python_type(context), AttributeError):
            raise
        return False
    return True
