"""Which objects stator may refer to weakly. Works without torch."""

from __future__ import annotations

import weakref
from typing import Any

from .native_status import native as _native

_HELD_STRONGLY: list[type] = []


def hold_strongly(kind: type) -> None:
    """Never refer weakly to instances of this class: they end without telling their weak references."""
    _HELD_STRONGLY.append(kind)
    if _native is not None:
        _native.hold_strongly(kind)


def can_be_referred_to(obj: object) -> bool:
    """Whether a weak reference to the object is possible, and is told when the object ends."""
    kind = type(obj)
    return bool(type.__dict__["__weakrefoffset__"].__get__(kind)) and not issubclass(kind, tuple(_HELD_STRONGLY))


_by_fields: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
_own_keys: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def own_key(made: Any, names: list[str]) -> Any:
    """The one object for all objects that capture makes of this class with these fields, to look them up."""
    fields = tuple((type(getattr(made, name)), getattr(made, name)) for name in names)
    found = _by_fields.setdefault((type(made), fields), made)
    _own_keys[id(found)] = found
    return found


def is_own_key(key: Any) -> bool:
    return _own_keys.get(id(key)) is key is not None
