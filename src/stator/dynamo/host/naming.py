"""The names of classes, and what they are made of, read past their metaclasses: `cls.__module__` and its like may be
properties of the program's. Never here: names of functions and modules, which are plain.
"""

from __future__ import annotations

class_name = type.__dict__["__name__"].__get__
qualified_name = type.__dict__["__qualname__"].__get__
resolution_order = type.__dict__["__mro__"].__get__
class_dict = type.__dict__["__dict__"].__get__
_module = type.__dict__["__module__"].__get__


def module_of(cls: type) -> str:
    """The module that the class itself names; "" where it was deleted, or is no text."""
    try:
        found = _module(cls)
    except AttributeError:
        return ""
    return found if type(found) is str else ""


def full_name(cls: type) -> str:
    return f"{module_of(cls)}.{qualified_name(cls)}"


def is_plain_class(cls: type) -> bool:
    """Whether reading, hashing and comparing the class runs nothing of the program: its metaclass leaves it to type."""
    for base in resolution_order(type(cls)):
        if base is type or base in OF_C:
            return True
        if any(name in class_dict(base) for name in _ASKED):
            return False
    return False


OF_C: list[type] = []  # metaclasses in C that read what they find without asking it (added by entry.py)
_ASKED = ("__hash__", "__eq__", "__getattribute__", "__mro__", "__dict__", "__class__", "__bases__", "__flags__")
