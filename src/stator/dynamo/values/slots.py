"""Where instances of a class keep their attributes: in slots, or in a dictionary. Values are not known here."""

from __future__ import annotations

import inspect
import threading
from dataclasses import dataclass
from typing import Any


def is_python_slot(found: Any) -> bool:
    """Whether it is a member that `__slots__` made, which can always be written and deleted."""
    return inspect.ismemberdescriptor(found) and "__slots__" in vars(found.__objclass__)


def names_of_slots(cls: type) -> frozenset[str]:
    """Names of attributes that instances hold in slots instead of their `__dict__`."""
    with_slots = (vars(base) for base in cls.__mro__ if "__slots__" in vars(base))
    return frozenset(name for members in with_slots for name, found in members.items() if is_python_slot(found))


def has_dict(cls: type) -> bool:
    """Whether instances have a dictionary of attributes."""
    return bool(cls.__dictoffset__) or issubclass(cls, threading.local)


@dataclass(frozen=True, slots=True)
class EmptySlot:
    """A guard: an object, of a class that is relied on, has nothing in this slot. What asks is written in C."""

    name: str

    def __call__(self, obj: object) -> bool:
        try:
            object.__getattribute__(obj, self.name)
        except AttributeError:
            return True
        return False

    def what_changed(self, obj: object) -> str:
        """For the log of recompilations."""
        return f"attribute {self.name!r}, which was not set, is set"
