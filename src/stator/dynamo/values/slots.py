"""Where instances of a class keep their attributes: in slots, or in a dictionary. Values are not known here."""

from __future__ import annotations

import inspect
import threading
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
