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
