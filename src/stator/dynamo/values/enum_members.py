"""Members of enumerations: constants of the program's classes, with properties, methods and data.

The enumerations themselves are values of classes.py.
"""

from __future__ import annotations

import enum
import types
import weakref
from types import FunctionType
from typing import Any

from stator.dynamo.guards.source import ConstantSource, InstanceDictSource, ItemSource
from stator.dynamo.host.hook import is_skipped
from stator.dynamo.host.naming import class_dict, class_name, is_python_class, resolution_order

from .base import CaptureContext, Value
from .constants import ConstantValue
from .objects import C_METHODS, MISSING, is_data_descriptor

# methods that no operator and no built-in function but str() and format() calls
_NEUTRAL = frozenset({"__init__", "__new__", "__str__", "__repr__", "__format__", "__dir__", "__reduce_ex__"})
_PLAIN_BASES = (object, int, float, complex, str, bytes)
_operations: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_containers: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def has_operations(cls: type) -> bool:
    """Whether operators on members of this enumeration run code of the program."""
    found = _operations.get(cls)
    if found is None:
        own = (class_dict(base).items() for base in resolution_order(cls))
        special = (one for names in own for name, one in names if name.startswith("__") and name not in _NEUTRAL)
        found = any(type(one) is FunctionType and not is_skipped(one.__code__) for one in special)
        _operations[cls] = found
    return found


def are_containers(cls: type) -> bool:
    """Whether members of this enumeration are lists, tuples, dictionaries or their like."""
    found = _containers.get(cls)
    if found is None:
        of_c = (base for base in resolution_order(cls) if not is_python_class(base))
        found = _containers[cls] = any(base not in _PLAIN_BASES for base in of_c)
    return found


def is_constant_member(member: enum.Enum) -> bool:
    """Whether one object stands for the member. `__new__` of the base makes an object that is no member yet: the class
    names it later."""
    kind = type(member)
    named = "_name_" in object.__getattribute__(member, "__dict__")
    return named and not has_operations(kind) and not are_containers(kind)


def member_attribute(context: CaptureContext, owner: ConstantValue, name: str) -> Value | None:
    """object.__getattribute__ of a member. None for an attribute that C code computes from the real member."""
    member: enum.Enum = owner.value
    cls = type(member)
    in_class = context.class_lookup(cls, name)
    if isinstance(in_class, types.DynamicClassAttribute):
        getter = in_class.fget
        if type(getter) is FunctionType and not is_skipped(getter.__code__):
            return context.class_function(cls, name, getter).call(context, [owner], {})
        return _own(context, member, f"_{name}_")
    if isinstance(in_class, (types.GetSetDescriptorType, types.MemberDescriptorType, *C_METHODS)):
        return None
    if in_class is not MISSING and is_data_descriptor(in_class) and hasattr(type(in_class), "__get__"):
        return context.bind(owner, cls, name, in_class)
    found = _own(context, member, name)
    if found is None and in_class is not MISSING:
        return context.bind(owner, cls, name, in_class)
    if found is None:
        raise context.raised(AttributeError, f"'{class_name(cls)}' object has no attribute '{name}'")
    return found


def _own(context: CaptureContext, member: enum.Enum, name: str) -> Value | None:
    """An entry of the member's own dictionary, guarded; None if it has no such name."""
    held: dict[str, Any] = object.__getattribute__(member, "__dict__")
    if name not in held:
        return None
    source = ConstantSource(f"{class_name(type(member))}.{held.get('_name_')}", member)
    return context.wrap(held[name], ItemSource(InstanceDictSource(source), name))
