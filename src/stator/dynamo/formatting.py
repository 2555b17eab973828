"""What str(), repr(), ascii() and format() give for values, through the methods of their classes.

How templates of str.format are taken apart is in values/constants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

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
    if conversion == 0 and not isinstance(value, ConstantValue):
        kind = value.python_type(tracer)
        method = tracer.class_lookup(kind, "__format__")
        if isinstance(method, FunctionType):
            bound = tracer.bind(value, kind, "__format__", method)
            return _text(tracer, bound.call(tracer, [ConstantValue(spec)], {}))
        if spec:
            raise unsupported("format", f"{value.describe(tracer)} with a format specification")
    text = text_of(tracer, value, conversion)
    return tracer.run_real(format, (text, spec))


def text_of(tracer: Tracer, value: Value, conversion: int) -> Any:
    """What format() would be given: the constant itself, or text."""
    convert = _CONVERSIONS[conversion]
    if isinstance(value, ExceptionValue):
        return value.text(tracer, convert if conversion else str)
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


def _text(tracer: Tracer, value: Value) -> str:
    text = tracer.constant_of(value, "text")
    if not isinstance(text, str):
        raise unsupported("format", "a method for text that returns something else")
    return text
