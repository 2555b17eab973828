"""inspect.signature of functions and methods in captured code: capture reads it, guards hold what decides it."""

from __future__ import annotations

import inspect
import operator
from types import FunctionType
from typing import Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.functions import BoundMethodValue


@calls(inspect.signature)
def _signature(context: CaptureContext, function: Value) -> Value:
    what = "the argument of inspect.signature"
    inner: Value = function.function if isinstance(function, BoundMethodValue) else function
    real = context.real_of(inner, what)
    chain = _wrapped_functions(real)
    if not chain or not all(map(_is_plain, chain)):
        raise unsupported("call-builtin", f"inspect.signature of {function.describe(context)}")
    signature = context.run_real(inspect.signature, (context.real_of(function, what),))
    held = inner.source or ConstantSource(real.__qualname__, real)
    context.guard(CallSource(_SameParts(real), (held,)), GuardKind.EQUALS, True)
    return context.wrap(signature, ConstantSource("signature", signature))


def _wrapped_functions(function: Any) -> list[FunctionType]:
    """The function and the functions that it wraps."""
    found: list[FunctionType] = []
    while type(function) is FunctionType and function not in found:
        found.append(function)
        function = function.__dict__.get("__wrapped__")
    return found


def _is_plain(function: FunctionType) -> bool:
    own = function.__dict__
    wraps_function = type(own.get("__wrapped__", function)) is FunctionType
    return wraps_function and own.keys().isdisjoint(("__signature__", "__partialmethod__", "_partialmethod"))


class _SameParts:
    """Checks that everything that decides a function's signature is the object that it was during capture."""

    def __init__(self, function: Any) -> None:
        self.parts = _parts(function)

    def __call__(self, function: Any) -> bool:
        now = _parts(function)
        return len(now) == len(self.parts) and all(map(operator.is_, now, self.parts))

    def __repr__(self) -> str:
        return "has the signature it had"


def _parts(function: Any) -> list[Any]:
    found: list[Any] = []
    for wrapped in _wrapped_functions(function):
        found += (wrapped.__code__, wrapped.__defaults__)
        for table in (wrapped.__kwdefaults__ or {}, wrapped.__annotations__, wrapped.__dict__):
            found += table
            found += table.values()
            found.append(_parts)  # ends the table
    return found
