"""inspect.signature in captured code: read when it is captured, and relied on with all that it was read from."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource
from stator.dynamo.host.naming import class_dict, resolution_order
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value
from stator.dynamo.values.functions import BoundMethodValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


@calls(inspect.signature)
def _signature(context: CaptureContext, function: Value, **kwargs: Value) -> Value:
    what = "the argument of inspect.signature"
    bound = isinstance(function, BoundMethodValue)
    inner: Value = function.function if bound else function  # type: ignore[attr-defined]
    looked_at = context.real_of(inner, what)  # a bound method is another object each time
    key = (looked_at, bound)
    signature = context.signatures.get(key)
    if signature is None:
        signature = context.signatures[key] = context.run_real(inspect.signature, (context.real_of(function, what),))
        held = inner.source or ConstantSource(f"<{getattr(looked_at, '__qualname__', 'callable')}>", looked_at)
        context.guard(CallSource(_SameParts(looked_at), (held,)), GuardKind.EQUALS, True)
    return context.wrap(signature, ConstantSource("signature", signature))


class _SameParts:
    """Whether all that the signature of a callable is read from is what it was."""

    def __init__(self, function: Any) -> None:
        self.parts = tuple(_parts(function, 0))

    def __call__(self, function: Any) -> bool:
        now = tuple(_parts(function, 0))
        return len(now) == len(self.parts) and all(map(operator.is_, now, self.parts))

    def __repr__(self) -> str:
        return "has the signature it had"


_MOST_WRAPPERS = 32
_NOTHING = object()


def _parts(function: Any, depth: int) -> Iterator[Any]:
    """The objects that decide, each to be the very same; what takes parameters by way of others, and those too."""
    if depth > _MOST_WRAPPERS:
        return
    if isinstance(function, types.MethodType):
        yield from _parts(function.__func__, depth + 1)
        return
    own = getattr(function, "__dict__", None) or {}
    for name in ("__signature__", "__text_signature__", "__partialmethod__", "_partialmethod"):
        yield own.get(name, _NOTHING)
    wrapped = own.get("__wrapped__", _NOTHING)
    yield wrapped
    if wrapped is not _NOTHING:
        yield from _parts(wrapped, depth + 1)
    if isinstance(function, types.FunctionType):
        yield from (function.__code__, function.__defaults__)
        for name, value in (function.__kwdefaults__ or {}).items():
            yield from (name, value)
        for name, value in function.__annotations__.items():
            yield from (name, value)
    elif isinstance(function, functools.partial):
        yield from function.args
        for name, value in function.keywords.items():
            yield from (name, value)
        yield from _parts(function.func, depth + 1)
    elif isinstance(function, type):
        for name in ("__new__", "__init__", "__signature__"):
            yield from _of_class(function, name, depth)
        yield from _of_class(type(function), "__call__", depth)
    else:
        yield from _of_class(type(function), "__call__", depth)


def _of_class(cls: type, name: str, depth: int) -> Iterator[Any]:
    for base in resolution_order(cls):
        if name in class_dict(base):
            found = class_dict(base)[name]
            yield found
            inner = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
            if isinstance(inner, types.FunctionType):
                yield from _parts(inner, depth + 1)
            return
    yield _NOTHING
