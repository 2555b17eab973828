"""Attributes of classes: lookups along the MRO, which guards watch, and the values of the attributes."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

from stator.dynamo.guards.guard import Lookup
from stator.dynamo.guards.source import AttrSource, ConstantSource, InstanceDictSource, ItemSource, Source
from stator.dynamo.host.naming import full_name, qualified_name
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.objects import is_data_descriptor, lookup_in_class, lookup_record, owner_in_class

_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def _of_metaclass(cls: type, name: str) -> bool:
    """Whether the metaclass defines the attribute as a data descriptor, such as `__class__` and `__doc__`."""
    return is_data_descriptor(lookup_in_class(type(cls), name))


class ClassAttributes:
    """`wrap(obj, source)` makes the value of a real object."""

    def __init__(self, wrap: Callable[[Any, Source | None], Value]) -> None:
        self._wrap = wrap
        self._values: dict[tuple[type, str], Value] = {}
        self._lookups: dict[tuple[type, str], Any] = {}

    def lookup(self, cls: type, name: str) -> Any:
        """The raw attribute, or MISSING. The end of the capture guards the lookup."""
        key = (cls, name)
        found = self._lookups.get(key)
        if found is None:
            found = self._lookups[key] = lookup_in_class(cls, name)
        return found

    def lookups(self) -> Iterable[tuple[type, list[Lookup]]]:
        """All lookups by class, without immutable classes."""
        made: dict[type, list[Lookup]] = {}
        for (cls, name), found in self._lookups.items():
            if cls.__flags__ & _IMMUTABLE_TYPE == 0:
                made.setdefault(cls, []).append(lookup_record(cls, name, found))
        return made.items()

    def value(self, cls: type, name: str) -> Value:
        """The value of a class attribute, read from the class dictionary."""
        owner = owner_in_class(cls, name)
        if owner is None:
            raise unsupported("attribute", f"{name!r} of {qualified_name(cls)}, which is gone by now")
        key = (owner, name)
        found = self._values.get(key)
        if found is None:
            raw = owner.__dict__[name]
            of_class = ConstantSource(full_name(owner), owner)
            source: Source = AttrSource(of_class, name)
            # getattr would run the attribute's `__get__`, or return the metaclass's attribute
            if hasattr(type(raw), "__get__") or _of_metaclass(owner, name):
                source = ItemSource(InstanceDictSource(of_class), name)
            found = self._values[key] = self._wrap(raw, source)
        return found

    def function(self, cls: type, name: str, function: Any) -> Value:
        """The Python function behind a class attribute (a plain one, or inside a property or static method)."""
        key = (cls, f"{name}()")
        found = self._values.get(key)
        if found is None or getattr(found, "fn", function) is not function:
            owner = owner_in_class(cls, name)
            owner = cls if owner is None else owner  # a class may have a truth value of its own
            of_class = ConstantSource(full_name(owner), owner)
            source: Source = AttrSource(of_class, name)
            raw = owner.__dict__.get(name)
            if _of_metaclass(owner, name):
                source = ItemSource(InstanceDictSource(of_class), name)
            if isinstance(raw, types.DynamicClassAttribute):  # the class shows a member in its place
                source = AttrSource(ItemSource(InstanceDictSource(of_class), name), "fget")
            elif isinstance(raw, property):
                part = next(part for part in ("fget", "fset", "fdel") if getattr(raw, part) is function)
                source = AttrSource(source, part)
            elif isinstance(raw, functools.cached_property):
                source = AttrSource(source, "func")
            elif isinstance(raw, classmethod):
                source = AttrSource(source, "__func__")
            found = self._values[key] = self._wrap(function, source)
        return found
