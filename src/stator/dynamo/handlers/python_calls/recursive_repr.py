"""The wrapper around `__repr__` that dataclasses and reprlib make: it shows an object inside of itself as `...`."""

from __future__ import annotations

import dataclasses
import reprlib
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from stator.dynamo.interpreter.calling import made_functions
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.functions import FunctionValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext


def _shown(context: CaptureContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise unsupported("format", "a __repr__ with other arguments than the object")
    cells = dict(zip(function.code.co_freevars, function.cells(context), strict=True))
    content: Any = cells["user_function"].content
    user_function = context.realized(content)
    running: Any = cells["repr_running"].content
    if context.truth(context.realized(running)):
        raise unsupported("format", "a __repr__ that is called while code outside of the graph shows an object")
    if any(of is user_function and value is args[0] for of, value in _being_shown):
        filling: Any = cells["fillvalue"].content if "fillvalue" in cells else None
        return ConstantValue("...") if filling is None else context.realized(filling)
    _being_shown.append((user_function, args[0]))
    try:
        return context.call(user_function, args, {})
    finally:
        _being_shown.pop()


_being_shown: list[tuple[Value, Value]] = []


def _codes(code: CodeType) -> list[CodeType]:
    """Code of functions inside of a function that wrap a `user_function`."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    found = [part for part in inner if part.co_name == "wrapper" and "user_function" in part.co_freevars]
    return found + [part for one in inner for part in _codes(one)]


for _maker in (getattr(dataclasses, "_recursive_repr", None), reprlib.recursive_repr):
    for _code in _codes(_maker.__code__) if isinstance(_maker, FunctionType) else ():
        made_functions[id(_code)] = _shown
