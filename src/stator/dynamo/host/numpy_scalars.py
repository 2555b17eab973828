"""NumPy's numbers as torch takes them: the types that count as numbers, their conversion to int or float, and the pure
functions on numbers. Also constants as text and in code objects.

Operators on tensors treat these numbers as Python numbers (without type promotion). No arrays here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .naming import class_name, module_of

_FLOATS = ("float16", "float32", "float64")
_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _converters() -> dict[type, Callable[[Any], Any]]:
    numpy = sys.modules.get("numpy")  # imported by torch, if installed
    if numpy is None:
        return {}
    floats = {getattr(numpy, name): float for name in _FLOATS}
    return {**floats, **{getattr(numpy, name): int for name in _INTS}}


_CONVERTERS = _converters()


def numpy_numbers() -> tuple[type, ...]:
    """The types of NumPy's numbers."""
    return tuple(_CONVERTERS)


def plain_converter(kind: type) -> Callable[[Any], Any] | None:
    """The function that converts a number of this type to an int or float; None unless the type is NumPy's."""
    return _CONVERTERS.get(kind)


def is_numpy_number(obj: Any) -> bool:
    """Whether the object is a number of NumPy."""
    return type(obj) in _CONVERTERS


def is_numpy_bool(obj: Any) -> bool:
    """Whether the object is a boolean of NumPy."""
    return module_of(type(obj)) == "numpy" and class_name(type(obj)) in ("bool", "bool_")


def is_pure_function(function: Any) -> bool:
    """Whether this is a universal function written in C, such as numpy.sqrt. Those made from Python code by
    numpy.frompyfunc, which may do anything, take and return only objects."""
    if module_of(type(function)) != "numpy" or class_name(type(function)) != "ufunc":
        return False
    return any("O" not in kinds for kinds in function.types)


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
