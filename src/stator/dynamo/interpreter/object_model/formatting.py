"""str(), repr(), ascii() and format() of values, by the methods of their classes. Templates of str.format are in
values/constants.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import FunctionType
from typing import Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource
from stator.dynamo.host.hook import is_skipped
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.functions import FunctionValue
from stator.dynamo.values.objects import ObjectValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber

# by the bytecode's number of the conversion: none, !s, !r, !a
CONVERSIONS: tuple[Callable[[Any], Any], ...] = (lambda it: it, str, repr, ascii)
_REPR, _ASCII = 2, 3


def format_value(context: CaptureContext, value: Value, conversion: int, spec: str) -> str:
    """`format(value, spec)` behind a conversion."""
    if type(value) is SymbolicNumber and value.is_constant():
        value = ConstantValue(value.constant())
    if conversion == 0 and (not isinstance(value, ConstantValue) or isinstance(value.value, enum.Enum)):
        kind = value.python_type(context)
        method = context.class_lookup(kind, "__format__")
        if type(method) is FunctionType and not is_skipped(method.__code__):
            bound = context.bind(value, kind, "__format__", method)
            return _text(context, bound.call(context, [ConstantValue(spec)], {}))
        if spec and not value.is_constant():
            raise unsupported("format", f"{value.describe(context)} with a format specification")
    text = text_of(context, value, conversion)
    return context.run_real(format, (text, spec))


def text_of(context: CaptureContext, value: Value, conversion: int) -> Any:
    """The object that format() receives: the constant itself, or text."""
    convert = CONVERSIONS[conversion]
    if isinstance(value, ExceptionValue):
        return value.text(context, convert if conversion else str)
    if isinstance(value, ConstantValue) and isinstance(value.value, enum.Enum):
        methods = (context.class_lookup(type(value.value), name) for name in ("__str__", "__repr__"))
        if any(type(method) is FunctionType and not is_skipped(method.__code__) for method in methods):
            raise unsupported("format", f"{value.describe(context)}, whose class has a method for its text")
    if value.is_constant():
        return context.run_real(convert, (value.constant(),))
    if isinstance(value, SetValue) and value.cls in (set, frozenset) and value.members:
        members = list(value.iterate(context))  # guards their order
        if all(isinstance(member, ConstantValue) and member.is_constant() for member in members):
            shown = "{" + ", ".join([text_of(context, member, max(conversion, _REPR)) for member in members]) + "}"
            return shown if value.cls is set else f"frozenset({shown})"
    if isinstance(value, ObjectValue):
        for name in ("__repr__",) if conversion >= _REPR else ("__str__", "__repr__"):
            method = value.special(context, name)
            if method is not None:
                text = _text(context, method.call(context, [], {}))
                return text.encode("ascii", "backslashreplace").decode("ascii") if conversion == _ASCII else text
            if name == "__str__" and context.class_lookup(value.cls, name) is not object.__str__:
                break
    if isinstance(value, FunctionValue) and value.fn is not None:
        convert = convert if conversion else str
        text = convert(value.fn)
        if value.source is not None:
            context.guard(CallSource(convert, (value.source,)), GuardKind.EQUALS, text)
        return text
    raise unsupported("format", f"{value.describe(context)} in a string", "format it outside of the compiled function")


def _text(context: CaptureContext, value: Value) -> str:
    text = context.constant_of(value, "text")
    if not isinstance(text, str):
        raise unsupported("format", "a method for text that returns something else")
    return text
