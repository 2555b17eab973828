"""Numbers of NumPy as torch takes them: which types count as numbers, how each becomes an int or a float, and which
functions of numbers are pure; constants as texts and as constants of code.

To operators on tensors they are Python numbers (they promote no type). No arrays here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .naming import class_name, module_of

_FLOATS = ("float16", "float32", "float64")
_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _converters() -> dict[type, Callable[[Any], Any]]:
    numpy = sys.modules.get("numpy")  # torch has imported it, where there is one
    if numpy is None:
        return {}
    floats = {getattr(numpy, name): float for name in _FLOATS}
    return {**floats, **{getattr(numpy, name): int for name in _INTS}}


_CONVERTERS = _converters()


def numpy_numbers() -> tuple[type, ...]:
    """The types of NumPy's numbers."""
    return tuple(_CONVERTERS)


def plain_converter(kind: type) -> Callable[[Any], Any] | None:
    """What makes an int or float of a number of this type; None unless it is one of NumPy's."""
    return _CONVERTERS.get(kind)


def is_numpy_number(obj: Any) -> bool:
    """Is this a number of NumPy's?"""
    return type(obj) in _CONVERTERS


def is_numpy_bool(obj: Any) -> bool:
    """Is this what comparing NumPy's numbers gives?"""
    return module_of(type(obj)) == "numpy" and class_name(type(obj)) in ("bool", "bool_")


def is_pure_function(function: Any) -> bool:
    """Is this a universal function written in C, such as numpy.sqrt? Those that numpy.frompyfunc makes of Python code,
    which may do anything, take and give objects alone."""
    if module_of(type(function)) != "numpy" or class_name(type(function)) != "ufunc":
        return False
    return any("O" not in kinds for kinds in function.types)


def with_fresh_tuples(constant: Any) -> Any:
    """The same in tuples of its own. Code interns the strings in the tuples that it is made with, in place: it would
    change those of the program."""
    return tuple([with_fresh_tuples(item) for item in constant]) if type(constant) is tuple else constant


def safe_repr(value: Any) -> str:
    """`repr(value)` of something plain; there may be a limit to the digits of an int that can be shown."""
    try:
        return repr(value)
    except ValueError:
        return "a very long number"


def is_python_class(cls: type) -> bool:
    """Whether it is a class written in Python: each of its instances is an object that may have attributes."""
    return bool(cls.__flags__ & _HEAP_TYPE)


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
