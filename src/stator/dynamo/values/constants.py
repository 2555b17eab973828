"""Immutable Python objects whose value is known: numbers, strings, None, dtypes, devices, enum members, code objects.

Containers of constants live in containers/.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from types import WrapperDescriptorType
from typing import Any

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import Source
from stator.dynamo.host.naming import class_name, qualified_name
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, RaisedAt, Recipe

from .base import CaptureContext, Reconstructor, Value, unsupported


class ConstantValue(Value):
    """A constant. Reading `value` of a constant from the program lays its guard."""

    __slots__ = ("_value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.source = source
        self._value = value

    @property
    def value(self) -> Any:
        return self._value

    def python_type(self, context: CaptureContext) -> type:
        return type(self.value)

    def real(self) -> Any:
        return self.value

    def constant(self) -> Any:
        return self.value

    def is_constant(self) -> bool:
        return True

    def key(self, context: CaptureContext) -> Any:
        return self.value

    def describe(self, context: CaptureContext) -> str:
        if isinstance(self._value, int) and self._value.bit_length() > 1000:
            return "a very long int"  # CPython limits the digits that repr shows
        if not isinstance(type(self._value).__repr__, WrapperDescriptorType):
            return f"a constant of type {qualified_name(type(self._value))}"  # messages do not run the program's repr
        return f"the constant {self._value!r}"[:200]

    def truth(self, context: CaptureContext) -> bool:
        return bool(self.value)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        value = self.value
        if isinstance(value, enum.Enum):
            held = context.member_attribute(self, name)
            if held is not None:
                return held
        found = context.run_real(getattr, (value, name))
        if callable(found) and getattr(found, "__self__", None) is value:
            return ConstantMethod(value, name, found)
        return context.wrap_result(found, f"attribute {name!r} of {self.describe(context)}")

    def call_method(self, context: CaptureContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return context.call(self.get_attr(context, name), args, kwargs)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        index = context.constant_of(key, "index of a constant")
        return ConstantValue(context.run_real(lambda value, at: value[at], (self.value, index)))

    def length(self, context: CaptureContext) -> int:
        return context.run_real(len, (self.value,))

    def contains(self, context: CaptureContext, item: Value) -> bool:
        return context.run_real(
            lambda value, it: it in value, (self.value, context.constant_of(item, "operand of `in`"))
        )

    def iterate(self, context: CaptureContext) -> Iterator[Value]:
        items = context.run_real(list, (self.value,))
        return iter([context.wrap_result(item, "an item of a constant") for item in items])

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self._value)


class LastInstruction(ConstantValue):
    """The offset of the instruction that raised, under its exception on the stack; always 0 (see ir/resume.py)."""

    __slots__ = ()

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return RaisedAt()


_UNIQUE = frozenset(  # types whose equal constants are identical
    (bool, type(None), type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)
)


def is_the_only_one(constant: Any) -> bool:
    """Whether each equal object of this type is this object."""
    kind = type(constant)
    return kind in _UNIQUE or (kind is int and -5 <= constant <= 256) or (kind is tuple and not constant)


class SourcedConstant(ConstantValue):
    """A constant read from the running program. The first use lays its EQUALS guard."""

    __slots__ = ("context", "guarded")

    def __init__(self, value: Any, source: Source, context: CaptureContext) -> None:
        super().__init__(value, source)
        self.context = context
        self.guarded = False

    @property
    def value(self) -> Any:
        if not self.guarded:
            self.guarded = True
            self.context.guard(self.source, GuardKind.EQUALS, self._value)  # type: ignore[arg-type]
        return self._value

    def peek(self) -> Any:
        """The value, without a guard."""
        return self._value

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        assert self.source is not None
        if self.guarded and is_the_only_one(self._value):
            return ConstantRecipe(self._value)
        return Load(self.source)  # an equal constant may be another object


class ConstantMethod(Value):
    """A bound method of a constant, such as `"abc".startswith`. Capture calls it if the arguments are constants."""

    __slots__ = ("method", "name", "owner")

    def __init__(self, owner: Any, name: str, method: Any) -> None:
        self.source = None
        self.owner, self.name, self.method = owner, name, method

    def python_type(self, context: CaptureContext) -> type:
        return type(self.method)

    def real(self) -> Any:
        return self.method

    def constant(self) -> Any:
        return self.method

    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.owner, torch.device):  # its methods enter and leave a mode
            return context.call(
                context.known(getattr(torch.device, self.name)), [ConstantValue(self.owner), *args], kwargs
            )
        if self.name == "__iter__" and not args:
            return context.iterator(ConstantValue(self.owner))
        what = f"argument of {class_name(type(self.owner))}.{self.name}"
        if self.name == "join" and isinstance(self.owner, str) and len(args) == 1 and not args[0].is_constant():
            args = [context.tuple_of(list(context.listed(args[0])))]
        if self.name in ("join", "format") and isinstance(self.owner, str) and not kwargs:
            text = context.number_text(getattr(str, self.name), [ConstantValue(self.owner), *args])
            if text is not None:
                return text
        real_args = tuple(context.constant_of(arg, what) for arg in args)
        real_kwargs = {name: context.constant_of(arg, what) for name, arg in kwargs.items()}
        result = context.run_real(self.method, real_args, real_kwargs)
        if result is None and not isinstance(self.owner, _WITHOUT_EFFECTS):
            raise unsupported("call-builtin", f"{what} returns nothing: it may act by side effect")
        return context.wrap_result(result, f"the result of {self.name}")

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self.method)


_WITHOUT_EFFECTS = (str, bytes, int, float, complex, type(None), re.Pattern, re.Match)
