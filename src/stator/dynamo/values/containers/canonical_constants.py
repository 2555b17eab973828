"""Constants that guards on their container hold, such as keys of a dictionary. Outside of the graph each of them is the
container's own object. Constants with guards of their own live in constants.py."""

from __future__ import annotations

import enum
from typing import Any

from stator.dynamo.codegen import support
from stator.dynamo.guards.source import ConstantSource, ItemSource, ReadSource, Source
from stator.dynamo.host.naming import safe_repr, with_fresh_tuples
from stator.dynamo.values.base import CaptureContext, Value
from stator.dynamo.values.constants import SourcedConstant, is_the_only_one

from .sequences import TupleValue


def constant_at(context: CaptureContext, obj: Any, source: Source | None) -> Value:
    """The value of a constant, or tuple of constants, that a guard on its container holds at `source`."""
    if source is None or is_the_only_one(obj):
        return context.known(obj)
    if type(obj) is tuple:
        return TupleValue(
            [constant_at(context, one, ItemSource(source, at)) for at, one in enumerate(obj)], source, tuple, obj
        )
    if isinstance(obj, enum.Enum) or not context.is_constant_object(obj):
        return context.known(obj)
    made = SourcedConstant(obj, source, context)
    made.guarded = True
    return made


def member_at(context: CaptureContext, obj: Any, members: Source | None) -> Value:
    """The value of a constant member of a set whose members a guard holds."""
    if members is None:
        return context.known(obj)
    return constant_at(
        context, obj, ReadSource(support.member_of, (members, ConstantSource(safe_repr(obj), with_fresh_tuples(obj))))
    )


def constant_of_code(context: CaptureContext, obj: Any) -> Value:
    """The value of a constant in code. A tuple is one object for all executions."""
    if type(obj) is not tuple or not obj:
        return context.known(obj)
    return TupleValue(list(map(context.code_constant, obj)), ConstantSource(safe_repr(obj), obj), tuple, obj)
