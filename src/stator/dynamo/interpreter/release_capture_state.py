"""Takes the state of a finished capture apart. Values form reference cycles: functions with globals and cells,
generators with frames, objects with their owners. Such cycles would keep the program's tensors and other objects alive
until the next garbage collection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stator.dynamo.graph.subgraphs import slots_of
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import IdentityKey
from stator.dynamo.values.scopes import GlobalScope

from .frame import Frame

_PARTS = (Value, Frame, GlobalScope, IdentityKey)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_OF_PROGRAM = frozenset(("cell", "functions", "names", "obj", "real_dict"))  # attributes that hold real objects
_DEPTH = 3  # nesting of containers that hold values


def dismantle(roots: Iterable[object]) -> None:
    """Clear all values and frames that can be reached from these objects."""
    waiting: list[Any] = []
    for root in roots:
        _note(root, waiting)
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or type(one) is ConstantValue:  # captures share some constants
            continue
        seen.add(id(one))
        for name in slots_of(type(one)):
            held = getattr(one, name, None)
            if held is None:
                continue
            if name not in _OF_PROGRAM:
                _note(held, waiting)
            if type(one) is not IdentityKey:  # keys are immutable
                delattr(one, name)


def _note(held: Any, waiting: list[Any], depth: int = _DEPTH) -> None:
    """Add the values and frames among these objects to `waiting`."""
    if isinstance(held, _PARTS):
        waiting.append(held)
    elif depth and type(held) in _CONTAINERS:
        for item in held:
            _note(item, waiting, depth - 1)
        if type(held) is dict:
            for item in held.values():
                _note(item, waiting, depth - 1)
