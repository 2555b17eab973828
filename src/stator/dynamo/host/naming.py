"""Names and properties of classes, read past their metaclasses: `cls.__module__` may be a property of the program's
metaclass. Functions and modules are not covered, because their names are plain attributes. Also texts and copies of
constants, for guards and code objects."""

from __future__ import annotations

from typing import Any

class_name = type.__dict__["__name__"].__get__
qualified_name = type.__dict__["__qualname__"].__get__
resolution_order = type.__dict__["__mro__"].__get__
class_dict = type.__dict__["__dict__"].__get__
_module = type.__dict__["__module__"].__get__
_flags = type.__dict__["__flags__"].__get__


def module_of(cls: type) -> str:
    """The class's own `__module__`; "" if it was deleted or is no text."""
    try:
        found = _module(cls)
    except AttributeError:
        return ""
    return found if type(found) is str else ""


def is_python_class(cls: type) -> bool:
    """Whether the class was made by a class statement, so that its instances may have attributes."""
    return bool(_flags(cls) & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


def full_name(cls: type) -> str:
    return f"{module_of(cls)}.{qualified_name(cls)}"


def is_plain_class(cls: type) -> bool:
    """Whether reading, hashing and comparing the class runs no code of the program: its metaclass overrides none of
    it."""
    for base in resolution_order(type(cls)):
        if base is type or base in OF_C:
            return True
        if any(name in class_dict(base) for name in _ASKED):
            return False
    return False


OF_C: list[type] = []  # metaclasses in C whose attribute lookup runs no user code (entry.py adds them)
_ASKED = ("__hash__", "__eq__", "__getattribute__", "__mro__", "__dict__", "__class__", "__bases__", "__flags__")


def with_fresh_tuples(constant: Any) -> Any:
    """The constant with copies of its tuples. A new code object interns the strings in its tuples in place, which
    would change the program's tuples."""
    return tuple([with_fresh_tuples(item) for item in constant]) if type(constant) is tuple else constant


def safe_repr(value: Any) -> str:
    """`repr(value)` of a plain value, also of an int beyond the limit of digits."""
    try:
        return repr(value)
    except ValueError:
        return "a very long number"
