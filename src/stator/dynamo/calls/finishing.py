"""What is called behind a graph break to finish an instruction that had entered a function (csrc/finishing.c).

Capture follows it, as a part of that instruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..calling import calls, initialize
from ..guard import GuardKind
from ..iteration import rely_on_iterator
from ..naming import class_name
from ..native_status import native
from ..source import AttrSource, ItemSource, Source
from ..values.base import Lazy, Value, unsupported
from ..values.classes import ClassValue
from ..values.constants import ConstantValue
from ..values.functions import BuiltinValue
from ..values.iterators import ResumedValue
from ..values.mappings import DictValue
from ..values.objects import MISSING, ObjectValue
from ..wrapping import wraps
from .operators import answered

if TYPE_CHECKING:
    from ..tracer import Tracer

if native is not None:

    @calls(native.answered)
    def _answered(tracer: Tracer, operation: Value) -> Value:
        left, right, answer, how = tracer.iterate(operation)
        found = answered(tracer, left, right, answer, how)
        wants_truth = list(tracer.iterate(how))[-1]
        return ConstantValue(tracer.truth(found)) if tracer.truth(wants_truth) else found

    @calls(native.initialized)
    def _initialized(tracer: Tracer, result: Value) -> ConstantValue:
        if not tracer.is_none(result):
            kind = class_name(result.python_type(tracer))
            raise tracer.raised(TypeError, f"__init__() should return None, not '{kind}'")
        return ConstantValue(None)

    @calls(native.made)
    def _made(tracer: Tracer, call: Value) -> Value:
        cls, args, keywords, made = tracer.iterate(call)
        assert isinstance(cls, ClassValue) and isinstance(keywords, DictValue)
        named = {tracer.constant_of(key, "a keyword"): value for key, value in keywords.items(tracer)}
        initialize(tracer, cls, made, list(tracer.iterate(args)), named)
        return made

    @calls(native.a_length)
    def _a_length(tracer: Tracer, result: Value) -> Value:
        return ConstantValue(tracer.length_of(result))

    @calls(native.is_filled)
    def _is_filled(tracer: Tracer, result: Value) -> Value:
        return ConstantValue(tracer.length_of(result) > 0)

    @calls(native.a_truth)
    def _a_truth(tracer: Tracer, result: Value) -> Value:
        if result.python_type(tracer) is not bool:
            raise unsupported("special-method", f"__bool__ that gives {result.describe(tracer)}")
        return ConstantValue(tracer.truth(result))

    @calls(native.member)
    def _member(tracer: Tracer, answer: Value) -> Value:
        return ConstantValue(tracer.truth(answer))

    @calls(native.no_member)
    def _no_member(tracer: Tracer, answer: Value) -> Value:
        return ConstantValue(not tracer.truth(answer))

    @calls(native.an_iterator)
    def _an_iterator(tracer: Tracer, result: Value) -> Value:
        rely_on_iterator(tracer, result)
        return result

    @calls(native.resumed)
    def _resumed(tracer: Tracer, state: Value) -> Value:
        taken, iterator, *result = tracer.iterate(state)
        items = list(tracer.iterate(taken))
        if result and _is_missed(result[0]):
            return ResumedValue(items, None)
        return ResumedValue([*items, *result], iterator)

    @wraps(native.Resumed)
    def _resumed_before(tracer: Tracer, obj: Any, source: Source | None) -> Value:
        """Where what ended the graph was the next step of a generator."""
        if source is None:
            raise unsupported("iteration", "an instruction in the middle of its items")
        taken, rest = AttrSource(source, "_taken"), AttrSource(source, "_rest")
        tracer.guard(source, GuardKind.TYPE, type(obj))
        tracer.guard(taken, GuardKind.LENGTH, len(obj._taken))
        tracer.guard(AttrSource(source, "_at"), GuardKind.EQUALS, obj._at)
        items: list[Value] = [Lazy(item, ItemSource(taken, at)) for at, item in enumerate(obj._taken)]
        if obj._rest is None:
            tracer.guard(rest, GuardKind.IS, None)
            return ResumedValue(items[obj._at :], None)
        return ResumedValue(items[obj._at :], tracer.wrap(obj._rest, rest))

    @calls(native.was_missed)
    def _was_missed(tracer: Tracer, result: Value) -> Value:
        return ConstantValue(_is_missed(result))

    @calls(native.otherwise)
    def _otherwise(tracer: Tracer, state: Value) -> Value:
        default, result = tracer.iterate(state)
        return default if _is_missed(result) else result

    @calls(native.found)
    def _found(tracer: Tracer, reading: Value) -> Value:
        owner, result, name = tracer.iterate(reading)
        if not _is_missed(result):
            return result
        hook = tracer.class_lookup(owner.python_type(tracer), "__getattr__")
        if hook is MISSING or not isinstance(owner, ObjectValue):
            raise unsupported("attribute", f"{name.describe(tracer)} of {owner.describe(tracer)}")
        return owner.missing_attr(tracer, hook, tracer.constant_of(name, "an attribute's name"))


def _is_missed(value: Value) -> bool:
    """Whether it stands for no item, or no attribute."""
    return isinstance(value, BuiltinValue) and value.fn is native.missed
