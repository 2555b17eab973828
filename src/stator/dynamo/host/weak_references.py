"""Which objects stator may refer to weakly. Works without torch."""

from __future__ import annotations

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
