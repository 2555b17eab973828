"""Iteration, mapping items and sorting of values, by Python's protocols."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.generators import GeneratorValue
from stator.dynamo.values.base import CaptureContext, Raised, Value, unsupported
from stator.dynamo.values.containers.iterators import IteratorValue
from stator.dynamo.values.containers.mappings import DictValue, MappingProxyValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.containers.slices import RangeValue
from stator.dynamo.values.objects import MISSING, ObjectValue
from stator.dynamo.values.symbolic_numbers import is_open
from stator.dynamo.values.tensors.tensor import TensorValue


def iterator(context: CaptureContext, value: Value) -> Value:
    """`iter(value)`."""
    made = value.iterator(context)
    if isinstance(made, ObjectValue):
        rely_on_iterator(context, made)
        return made
    if isinstance(made, (IteratorValue, GeneratorValue)):
        return made
    raise unsupported("iteration", f"__iter__ gave {made.describe(context)}")


def rely_on_iterator(context: CaptureContext, made: Value) -> None:
    """Raises TypeError in the program if the class of `__iter__`'s result has no `__next__`."""
    kind = made.python_type(context)
    if context.class_lookup(kind, "__next__") is MISSING:
        raise context.raised(TypeError, f"iter() returned non-iterator of type '{class_name(kind)}'")


def next_item(context: CaptureContext, iterator: Value) -> Value | None:
    """The next item, or None at the end. `context.ended_by` keeps the program's StopIteration."""
    item = _next_item(context, iterator)
    if item is not None:
        context.ended_by = None
    return item


def _next_item(context: CaptureContext, iterator: Value) -> Value | None:
    if isinstance(iterator, (IteratorValue, GeneratorValue)):
        return iterator.next_item(context)
    try:
        return context.call(context.get_attr(iterator, "__next__"), [], {})
    except Raised as raised:
        if not issubclass(raised.value.python_type(context), StopIteration):
            raise
        context.ended_by = raised
        return None


def may_iterate(context: CaptureContext, value: Value) -> bool:
    kind = value.python_type(context)
    return any(context.class_lookup(kind, name) is not MISSING for name in ("__iter__", "__getitem__"))


def listed(context: CaptureContext, value: Value) -> Iterator[Value]:
    """The items as list(), tuple() and stars take them: Python asks an object for its iterator, then for its length."""
    if isinstance(value, TensorValue):
        context.loops.check_parts(value)
    if isinstance(value, RangeValue) and value.has_open_length:
        value.fix("a list of a range needs its length, torch.arange does not")
    if not isinstance(value, ObjectValue) or not _says_its_length(context, value):
        yield from context.iterate(value)
        return
    iterator = context.iterator(value)
    _ask_length(context, value)
    while (item := context.next_item(iterator)) is not None:
        yield item


def _says_its_length(context: CaptureContext, value: ObjectValue) -> bool:
    return any(type(context.class_lookup(value.cls, name)) is FunctionType for name in _LENGTHS)


_LENGTHS = ("__len__", "__length_hint__")


def _ask_length(context: CaptureContext, value: ObjectValue) -> None:
    """operator.length_hint(value), whose result changes nothing; the program's method may have effects."""
    method = value.special(context, "__len__") or value.special(context, "__length_hint__")
    try:
        if method is not None:
            context.length_of(method.call(context, [], {}))
    except Raised as raised:
        raise unsupported("special-method", f"an error in the length of {value.describe(context)}") from raised


def mapping_items(context: CaptureContext, value: Value) -> list[tuple[Value, Value]]:
    """The items of a mapping, as `**mapping` takes them."""
    if isinstance(value, DictValue) and value.special(context, "keys") is None:
        return list(value.items(context))
    if context.class_lookup(value.python_type(context), "keys") is MISSING:
        raise unsupported("call", f"{value.describe(context)} in the place of a mapping")
    keys = context.call(context.get_attr(value, "keys"), [], {})
    return [(key, context.get_item(value, key)) for key in context.iterate(keys)]


def pairs(context: CaptureContext, value: Value) -> Iterator[tuple[Value, Value]]:
    """The pairs that `dict(value)` takes, from a mapping or from an iterable of pairs."""
    if isinstance(value, DictValue | MappingProxyValue):
        yield from (value if isinstance(value, DictValue) else value.shown).items(context)
        return
    for at, pair in enumerate(context.iterate(value)):
        if not may_iterate(context, pair):
            raise unsupported("call-builtin", f"{pair.describe(context)} in the place of a pair")
        parts = list(context.iterate(pair))
        if len(parts) != 2:
            text = f"dictionary update sequence element #{at} has length {len(parts)}; 2 is required"
            raise context.raised(ValueError, text)
        yield parts[0], parts[1]


def sorted_items(context: CaptureContext, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
    """`sorted(items, key=key, reverse=reverse)`."""
    by = items if key is None or context.is_none(key) else [context.call(key, [item], {}) for item in items]
    down = reverse is not None and context.truth(reverse)
    if any(map(is_open, by)):
        return [items[at] for at in sorted(range(len(items)), key=lambda at: _Measure(context, by[at]), reverse=down)]
    compared = _distinct_first_items(context, by) or [context.constant_of(item, "what is sorted by") for item in by]
    order = context.run_real(sorted, (range(len(items)),), {"key": compared.__getitem__, "reverse": down})
    return [items[at] for at in order]


class _Measure:
    """What an item is sorted by, with a symbolic number among the measures: each comparison is a decision."""

    def __init__(self, context: CaptureContext, value: Value) -> None:
        self.context, self.value = context, value

    def __lt__(self, other: _Measure) -> bool:
        return self.context.truth(self.context.compare(operator.lt, self.value, other.value))


def _distinct_first_items(context: CaptureContext, values: list[Value]) -> list[Any]:
    """The first items of tuples, if these are distinct texts or integers, which decide the order alone; else none."""
    if not all(isinstance(value, TupleValue) and value.cls is tuple and value.items for value in values):
        return []
    firsts = [value.at(context, 0) for value in values]  # type: ignore[attr-defined]
    kinds = {first.python_type(context) for first in firsts}
    if len(kinds) != 1 or not kinds <= {str, int}:
        return []
    constants = [context.constant_of(first, "what is sorted by") for first in firsts]
    return constants if len(set(constants)) == len(constants) else []
