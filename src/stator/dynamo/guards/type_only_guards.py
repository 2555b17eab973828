"""What is relied on where a frame has nothing to compile, call after call, though no two calls look alike: the types of
its arguments. Which version that gives, and when, is decided in compiled_frames.py. Works without torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from .guard import Guard, GuardKind
from .source import LocalSource

TENSORS: list[type] = []  # classes of what graphs work on (added by entry.py)


def guards_on_types(bound: Mapping[str, object]) -> list[Guard]:
    """Guards that hold for arguments of the same types, while tuples, lists and dicts without tensors stay so."""
    guards = [Guard(LocalSource(name), GuardKind.TYPE, type(value)) for name, value in bound.items()]
    for name, value in bound.items():
        if type(value) in _CONTAINERS and holds_no_tensor(value):
            guards.append(Guard(LocalSource(name), GuardKind.PREDICATE, holds_no_tensor))
    return guards


def holds_no_tensor(container: object) -> bool:
    """Guard predicate: of a tuple, list or dict, not looking further down."""
    items = container.values() if type(container) is dict else container
    return not any(isinstance(item, tuple(TENSORS)) for item in items)  # type: ignore[attr-defined]


_CONTAINERS = (tuple, list, dict)
