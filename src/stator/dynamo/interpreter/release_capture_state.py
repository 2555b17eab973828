"""What a capture worked with is taken apart when it is over.

Its values lead back to themselves: functions to the globals and cells they are found in, generators to their frames,
objects to those that refer to them. Such circles would keep objects of the program until the next collection of the
interpreter, which let go of them long before: memory of tensors, and ends that a program waits for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import IdentityKey
from stator.dynamo.values.scopes import GlobalScope

from .frame import Frame

_PARTS = (Value, Frame, GlobalScope, IdentityKey)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_OF_PROGRAM = frozenset(("cell", "functions", "names", "obj", "real_dict"))  # attributes that hold objects as they are
_DEPTH = 3  # of containers in containers, in which there are values


def dismantle(roots: Iterable[object]) -> None:
    """Take all values and frames apart that can be reached from these; nothing can be asked of them any more."""
    waiting: list[Any] = []
    for root in roots:
        _note(root, waiting)
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or type(one) is ConstantValue:  # some constants are those of all captures
            continue
        seen.add(id(one))
        for name in _slots(type(one)):
            held = getattr(one, name, None)
            if held is None:
                continue
            if name not in _OF_PROGRAM:
                _note(held, waiting)
            if type(one) is not IdentityKey:  # are as they are made
                delattr(one, name)


def _note(held: Any, waiting: list[Any], depth: int = _DEPTH) -> None:
    """Add the parts of a capture among these."""
    if isinstance(held, _PARTS):
        waiting.append(held)
    elif depth and type(held) in _CONTAINERS:
        for item in held:
            _note(item, waiting, depth - 1)
        if type(held) is dict:
            for item in held.values():
                _note(item, waiting, depth - 1)


_known_slots: dict[type, tuple[str, ...]] = {}


def _slots(kind: type) -> tuple[str, ...]:
    found = _known_slots.get(kind)
    if found is None:
        names = (name for cls in kind.__mro__ for name in vars(cls).get("__slots__", ()))
        found = _known_slots[kind] = tuple(names)
    return found
