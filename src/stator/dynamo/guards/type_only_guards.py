"""Guards for frames that have nothing to compile in call after call, though no two calls look alike: only the types of
the arguments. compiled_frames.py decides when they apply. Works without torch."""

from __future__ import annotations

from collections.abc import Mapping

from .guard import Guard, GuardKind
from .source import LocalSource

TENSORS: list[type] = []  # the classes of tensors (entry.py adds them)


def guards_on_types(bound: Mapping[str, object]) -> list[Guard]:
    """Guards that hold for arguments of these types, while tuples, lists and dicts without tensors contain none."""
    guards = [Guard(LocalSource(name), GuardKind.TYPE, type(value)) for name, value in bound.items()]
    for name, value in bound.items():
        if type(value) in _CONTAINERS and holds_no_tensor(value):
            guards.append(Guard(LocalSource(name), GuardKind.PREDICATE, holds_no_tensor))
    return guards


def holds_no_tensor(container: object) -> bool:
    """Guard predicate for a tuple, list or dict; nested containers are not inspected."""
    items = container.values() if type(container) is dict else container
    return not any(isinstance(item, tuple(TENSORS)) for item in items)  # type: ignore[attr-defined]


_CONTAINERS = (tuple, list, dict)
