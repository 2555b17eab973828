"""contextvars.ContextVar: what captured code reads from one, sets it to, and puts back.

Only the last value reaches the running program, when the graph has run; a token that outlives the graph does not exist,
so that the graph ends before the variable is set.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, Source
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Effect, Load, Recipe, call_effect

from .base import Value, cannot_rebuild, unsupported

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor


class _Unset:
    """Stands for the value of a variable that has none."""


_UNSET = _Unset()


def _value_set(variable: ContextVar[Any]) -> Any:
    return variable.get(_UNSET)


def _value_of(variable: ContextVar[Any]) -> Any:
    try:
        return variable.get()  # its own default, if there is one
    except LookupError:
        return _UNSET


class ContextVariable(Value):
    """`now`: what captured code has set it to, or None where it is as it was at entry."""

    __slots__ = ("now", "variable")

    def __init__(self, variable: ContextVar[Any], source: Source) -> None:
        super().__init__(source)
        self.variable = variable
        self.now: Value | None = None

    def python_type(self, context: CaptureContext) -> type:
        return ContextVar

    def real(self) -> ContextVar[Any]:
        return self.variable

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name in _METHODS:
            return _Method(self, name)
        return super().get_attr(context, name)

    def get(self, context: CaptureContext, default: Value | None = None) -> Value:
        if self.now is not None:
            return self.now
        assert self.source is not None
        read = _value_of if default is None else _value_set
        source = CallSource(read, (self.source,))
        found = read(self.variable)
        if found is not _UNSET:
            return context.wrap(found, source)
        context.guard(source, GuardKind.IS, _UNSET)
        if default is None:
            raise context.raised_with(LookupError, [self])
        return default

    def set(self, context: CaptureContext, value: Value) -> Value:
        if not context.in_the_call:
            raise unsupported("call-builtin", "setting a context variable in code that runs at another time")
        context.mutations.content(self)
        token = ContextToken(self, self.now, context.end_step())
        self.now = value
        return token

    def reset(self, context: CaptureContext, token: Value) -> Value:
        if not isinstance(token, ContextToken) or token.variable is not self:
            raise unsupported("call-builtin", f"ContextVar.reset with {token.describe(context)}")
        if token.used:
            raise unsupported("call-builtin", "ContextVar.reset with a token that was used before")
        context.mutations.content(self)
        self.now = token.before
        token.used = True
        return context.constant(None)

    def effects(self, reconstructor: Reconstructor) -> list[Effect]:
        """What sets it, at run time; nothing where it was put back."""
        if self.now is None:
            return []
        return [call_effect(ContextVar.set, reconstructor.recipe(self), reconstructor.recipe(self.now))]

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return Load(self.source)  # type: ignore[arg-type]


# with how many arguments they take
_METHODS: dict[str, tuple[Callable[..., Value], tuple[int, ...]]] = {
    "get": (ContextVariable.get, (0, 1)),
    "set": (ContextVariable.set, (1,)),
    "reset": (ContextVariable.reset, (1,)),
}


class ContextToken(Value):
    """What `set` gave: `before` is what `reset` puts back."""

    __slots__ = ("before", "made_at", "used", "variable")

    def __init__(self, variable: ContextVariable, before: Value | None, made_at: int) -> None:
        super().__init__()
        self.variable = variable
        self.before = before
        self.made_at = made_at
        self.used = False

    def python_type(self, context: CaptureContext) -> type:
        return Token

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("the token of a context variable", self.made_at)


class _Method(Value):
    """A bound method of a variable."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: ContextVariable, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def python_type(self, context: CaptureContext) -> type:
        return type([].append)

    def describe(self, context: CaptureContext) -> str:
        return f"the method ContextVar.{self.name}"

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method, counts = _METHODS[self.name]
        if kwargs or len(args) not in counts:
            raise unsupported("call-builtin", f"ContextVar.{self.name} with arguments that it does not take")
        return method(self.owner, context, *args)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return CallRecipe(ConstantRecipe(getattr), [reconstructor.recipe(self.owner), ConstantRecipe(self.name)])
