"""contextvars.ContextVar: get, set and reset in captured code.

The running program gets only the last value, behind the graph. A token cannot leave the graph, which then ends ahead of
the call of `set`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, Source
from stator.dynamo.ir.reconstruct_ir import Effect, Load, Recipe, call_effect

from .base import CaptureContext, Reconstructor, Value, cannot_rebuild, unsupported
from .objects import ObjectValue


class _Unset:
    """The value of a variable that has none."""


_UNSET = _Unset()


def _value_set(variable: ContextVar[Any]) -> Any:
    return variable.get(_UNSET)


def _value_of(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()  # its own default, if there is one
    except LookupError:
        return _UNSET


class ContextVariable(ObjectValue):
    """`now` is the value that captured code has set; None for the value at entry."""

    __slots__ = ("now",)

    def __init__(self, variable: ContextVar[Any], source: Source) -> None:
        super().__init__(ContextVar, variable, source)
        self.now: Value | None = None

    def builtin_method(self, context: CaptureContext, name: str) -> Callable[..., Value] | None:
        return _METHODS.get(name)

    def effects(self, reconstructor: Reconstructor) -> list[Effect]:
        """Sets the variable at run time, unless captured code has put the value at entry back."""
        if self.now is None:
            return []
        return [call_effect(ContextVar.set, reconstructor.recipe(self), reconstructor.recipe(self.now))]

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return Load(self.source)  # type: ignore[arg-type]


class ContextToken(Value):
    """The token of a call of `set`. `reset` puts `before` back."""

    __slots__ = ("before", "made_at", "used", "variable")
    cls = Token

    def __init__(self, variable: ContextVariable, before: Value | None, made_at: int) -> None:
        super().__init__()
        self.variable = variable
        self.before = before
        self.made_at = made_at
        self.used = False

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("the token of a context variable", self.made_at)


def _get(context: CaptureContext, self: ContextVariable, default: Value | None = None) -> Value:
    if self.now is not None:
        return self.now
    assert self.source is not None
    read = _value_of if default is None else _value_set
    source = CallSource(read, (self.source,))
    found = read(self.obj)
    if found is not _UNSET:
        return context.wrap(found, source)
    context.guard(source, GuardKind.IS, _UNSET)
    if default is None:
        raise context.raised_with(LookupError, [self])
    return default


def _set(context: CaptureContext, self: ContextVariable, value: Value) -> Value:
    if not context.in_the_call:
        raise unsupported("call-builtin", "setting a context variable in code that runs later")
    context.mutations.content(self)
    token = ContextToken(self, self.now, context.end_step())
    self.now = value
    return token


def _reset(context: CaptureContext, self: ContextVariable, token: Value) -> Value:
    if not isinstance(token, ContextToken) or token.variable is not self or token.used:
        raise unsupported("call-builtin", f"ContextVar.reset with {token.describe(context)}")
    context.mutations.content(self)
    self.now = token.before
    token.used = True
    return context.constant(None)


_METHODS: dict[str, Callable[..., Value]] = {"get": _get, "set": _set, "reset": _reset}
