"""What str(), repr(), ascii() and format() give for values, through the methods of their classes.

How templates of str.format are taken apart is in values/constants.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from .hook import is_left_alone
from .values.base import Value, unsupported
from .values.constants import ConstantValue
from .values.exceptions import ExceptionValue
from .values.objects import ObjectValue

if TYPE_CHECKING:
    from .tracer import Tracer

# by the number of the conversion in bytecode: none, !s, !r, !a
_CONVERSIONS: tuple[Callable[[Any], Any], ...] = (lambda it: it, str, repr, ascii)
_REPR, _ASCII = 2, 3


def format_value(tracer: Tracer, value: Value, conversion: int, spec: str) -> str:
    """`format(value, spec)` behind a conversion."""
    if conversion == 0 and (not isinstance(value, ConstantValue) or isinstance(value.value, enum.Enum)):
        kind = value.python_type(tracer)
        method = tracer.class_lookup(kind, "__format__")
        if method is None:
            raise tracer.raised(TypeError, "'NoneType' object is not callable")
        if isinstance(method, FunctionType) and not is_left_alone(method.__code__):
            bound = tracer.bind(value, kind, "__format__", method)
            return _text(tracer, bound.call(tracer, [ConstantValue(spec)], {}))
        if spec and not value.is_constant():
            raise unsupported("format", f"{value.describe(tracer)} with a format specification")
    text = text_of(tracer, value, conversion)
    return tracer.run_real(format, (text, spec))


def text_of(tracer: Tracer, value: Value, conversion: int) -> Any:
    """What format() would be given: the constant itself, or text."""
    convert = _CONVERSIONS[conversion]
    if isinstance(value, ExceptionValue):
        return value.text(tracer, convert if conversion else str)
    if isinstance(value, ConstantValue) and isinstance(value.value, enum.Enum):
        return _text_of_member(tracer, value, conversion)
    if value.is_constant():
        return tracer.run_real(convert, (value.constant(),))
    if isinstance(value, ObjectValue):
        for name in ("__repr__",) if conversion >= _REPR else ("__str__", "__repr__"):
            method = value.special(tracer, name)
            if method is not None:
                text = _text(tracer, method.call(tracer, [], {}))
                return text.encode("ascii", "backslashreplace").decode("ascii") if conversion == _ASCII else text
            if name == "__str__" and tracer.class_lookup(value.cls, name) is not object.__str__:
                break
    raise unsupported("format", f"{value.describe(tracer)} in a string", "format it outside of the compiled function")


def _text_of_member(tracer: Tracer, member: ConstantValue, conversion: int) -> Any:
    """Of an enumeration: by its own method, if the program wrote one."""
    for name in ("__repr__",) if conversion >= _REPR else ("__str__", "__repr__"):
        method = tracer.class_lookup(type(member.value), name)
        if isinstance(method, FunctionType) and not is_left_alone(method.__code__):
            text = _text(tracer, tracer.call(tracer.get_attr(member, name), [], {}))
            return text.encode("ascii", "backslashreplace").decode("ascii") if conversion == _ASCII else text
        if name == "__str__" and method is not enum.Enum.__str__:
            break
    return tracer.run_real(_CONVERSIONS[conversion], (member.value,))


def _text(tracer: Tracer, value: Value) -> str:
    text = tracer.constant_of(value, "text")
    if not isinstance(text, str):
        raise unsupported("format", "a method for text that returns something else")
    return text
