"""What is called behind a graph break to finish an instruction that had entered a function (csrc/finishing.c).

Capture follows it, as a part of that instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, ItemSource, Source
from stator.dynamo.host.naming import class_name
from stator.dynamo.host.native_status import native
from stator.dynamo.interpreter.calling import calls, initialize
from stator.dynamo.interpreter.iteration import rely_on_iterator
from stator.dynamo.interpreter.wrapping import wraps
from stator.dynamo.values.base import Lazy, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.iterators import ResumedValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.functions import BuiltinValue
from stator.dynamo.values.objects import MISSING, ObjectValue

from .operators import answered

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext

if native is not None:

    @calls(native.answered)
    def _answered(context: CaptureContext, operation: Value) -> Value:
        left, right, answer, how = context.iterate(operation)
        found = answered(context, left, right, answer, how)
        wants_truth = list(context.iterate(how))[-1]
        return ConstantValue(context.truth(found)) if context.truth(wants_truth) else found

    @calls(native.initialized)
    def _initialized(context: CaptureContext, result: Value) -> ConstantValue:
        if not context.is_none(result):
            kind = class_name(result.python_type(context))
            raise context.raised(TypeError, f"__init__() should return None, not '{kind}'")
        return ConstantValue(None)

    @calls(native.made)
    def _made(context: CaptureContext, call: Value) -> Value:
        cls, args, keywords, made = context.iterate(call)
        assert isinstance(cls, ClassValue) and isinstance(keywords, DictValue)
        named = {context.constant_of(key, "a keyword"): value for key, value in keywords.items(context)}
        initialize(context, cls, made, list(context.iterate(args)), named)
        return made

    @calls(native.a_length)
    def _a_length(context: CaptureContext, result: Value) -> Value:
        return ConstantValue(context.length_of(result))

    @calls(native.is_filled)
    def _is_filled(context: CaptureContext, result: Value) -> Value:
        return ConstantValue(context.length_of(result) > 0)

    @calls(native.a_truth)
    def _a_truth(context: CaptureContext, result: Value) -> Value:
        if result.python_type(context) is not bool:
            raise unsupported("special-method", f"__bool__ that gives {result.describe(context)}")
        return ConstantValue(context.truth(result))

    @calls(native.member)
    def _member(context: CaptureContext, answer: Value) -> Value:
        return ConstantValue(context.truth(answer))

    @calls(native.no_member)
    def _no_member(context: CaptureContext, answer: Value) -> Value:
        return ConstantValue(not context.truth(answer))

    @calls(native.an_iterator)
    def _an_iterator(context: CaptureContext, result: Value) -> Value:
        rely_on_iterator(context, result)
        return result

    @calls(native.resumed)
    def _resumed(context: CaptureContext, state: Value) -> Value:
        taken, iterator, *result = context.iterate(state)
        items = list(context.iterate(taken))
        if result and _is_missed(result[0]):
            return ResumedValue(items, None)
        return ResumedValue([*items, *result], iterator)

    @wraps(native.Resumed)
    def _resumed_before(context: CaptureContext, obj: Any, source: Source | None) -> Value:
        """Where what ended the graph was the next step of a generator."""
        if source is None:
            raise unsupported("iteration", "an instruction in the middle of its items")
        taken, rest = AttrSource(source, "_taken"), AttrSource(source, "_rest")
        context.guard(source, GuardKind.TYPE, type(obj))
        context.guard(taken, GuardKind.LENGTH, len(obj._taken))
        context.guard(AttrSource(source, "_at"), GuardKind.EQUALS, obj._at)
        items: list[Value] = [Lazy(item, ItemSource(taken, at)) for at, item in enumerate(obj._taken)]
        if obj._rest is None:
            context.guard(rest, GuardKind.IS, None)
            return ResumedValue(items[obj._at :], None)
        return ResumedValue(items[obj._at :], context.wrap(obj._rest, rest))

    @calls(native.was_missed)
    def _was_missed(context: CaptureContext, result: Value) -> Value:
        return ConstantValue(_is_missed(result))

    @calls(native.otherwise)
    def _otherwise(context: CaptureContext, state: Value) -> Value:
        default, result = context.iterate(state)
        return default if _is_missed(result) else result

    @calls(native.found)
    def _found(context: CaptureContext, reading: Value) -> Value:
        owner, result, name = context.iterate(reading)
        if not _is_missed(result):
            return result
        hook = context.class_lookup(owner.python_type(context), "__getattr__")
        if hook is MISSING or not isinstance(owner, ObjectValue):
            raise unsupported("attribute", f"{name.describe(context)} of {owner.describe(context)}")
        return owner.missing_attr(context, hook, context.constant_of(name, "an attribute's name"))


def _is_missed(value: Value) -> bool:
    """Whether it stands for no item, or no attribute."""
    return isinstance(value, BuiltinValue) and value.fn is native.missed
