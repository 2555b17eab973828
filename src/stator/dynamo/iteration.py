"""Items, pairs and orders of values, as the captured program would see them."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING

from .finishing import Finish, Role, Way
from .naming import class_name
from .polyfills import sorting
from .values.base import Raised, Value, unsupported
from .values.constants import ConstantValue
from .values.generators import GeneratorValue
from .values.iterators import IteratorValue, ResumedValue, stop_aware
from .values.live_generators import generator_of
from .values.mappings import DictValue
from .values.objects import MISSING, ObjectValue
from .values.sequences import TupleValue
from .values.tensors import TensorValue

if TYPE_CHECKING:
    from .tracer import Tracer


def iterator(tracer: Tracer, value: Value) -> Value:
    """`iter(value)`."""
    made = value.iterator(tracer)
    if isinstance(made, ObjectValue):
        rely_on_iterator(tracer, made)
        return made
    if isinstance(made, (IteratorValue, GeneratorValue)):
        return made
    raise unsupported("iteration", f"__iter__ gave {made.describe(tracer)}")


def rely_on_iterator(tracer: Tracer, made: Value) -> None:
    """Of what `__iter__` gave, the interpreter looks whether its class says how to go on."""
    kind = made.python_type(tracer)
    if tracer.class_lookup(kind, "__next__") is MISSING:
        raise tracer.raised(TypeError, f"iter() returned non-iterator of type '{class_name(kind)}'")


def next_item(tracer: Tracer, iterator: Value) -> Value | None:
    """The next item, or None at the end; by what that was said, the tracer knows."""
    item = _asked(tracer, iterator)
    if item is not None:
        tracer.ended_by = None
    return item


def _asked(tracer: Tracer, iterator: Value) -> Value | None:
    while isinstance(iterator, ResumedValue) and not iterator.taken:
        if iterator.iterated is None:
            return None
        collecting = tracer.collecting(iterator)
        iterator = iterator.iterated
        if collecting is not None:
            collecting.source = iterator
    collecting = tracer.collecting(iterator)
    if collecting is None:
        return _next_item(tracer, iterator)
    if len(collecting.taken) >= _MOST_TAKEN:
        collecting.source = None
        return _next_item(tracer, iterator)
    taken = TupleValue(list(collecting.taken))
    generator = generator_of(tracer, iterator)
    asked, role = (iterator, Role.OPERAND) if generator is None else (generator, Role.CALL)
    tracer.enters(asked, Way(Finish.COLLECTED, (*collecting.below, taken, iterator), role))
    item = _next_item(tracer, iterator)
    if item is not None and collecting.plainly and not _is_plain(item):
        collecting.source = None
    elif item is not None:
        collecting.taken.append(item)
    return item


def _is_plain(item: Value) -> bool:
    """Whether nothing of the program's runs when an instruction looks at it again."""
    if isinstance(item, TupleValue):
        return all(isinstance(part, (ConstantValue, TensorValue)) for part in item.items)
    return isinstance(item, ConstantValue)


_MOST_TAKEN = 4  # before an instruction is left in the middle: each number of items is code of its own


def _next_item(tracer: Tracer, iterator: Value) -> Value | None:
    if isinstance(iterator, (IteratorValue, GeneratorValue)):
        return iterator.next_item(tracer)
    generator = generator_of(tracer, iterator)
    if generator is not None:
        return generator.next_item(tracer)
    step = tracer.get_attr(iterator, "__next__")
    tracer.enters_through(iterator, step, Role.OPERAND)
    return next(stop_aware(tracer, step), None)


def may_iterate(tracer: Tracer, value: Value) -> bool:
    kind = value.python_type(tracer)
    return any(tracer.class_lookup(kind, name) is not MISSING for name in ("__iter__", "__getitem__"))


def listed(tracer: Tracer, value: Value) -> Iterator[Value]:
    """The items as list(), tuple() and stars take them: an object is asked for its iterator, then for its length."""
    if not isinstance(value, ObjectValue) or not _says_its_length(tracer, value):
        yield from tracer.iterate(value)
        return
    collecting = tracer.collecting(value)
    iterator = tracer.iterator(value)
    if collecting is not None:
        collecting.source = iterator
    _ask_length(tracer, value)
    while (item := tracer.next_item(iterator)) is not None:
        yield item


def _says_its_length(tracer: Tracer, value: ObjectValue) -> bool:
    return any(isinstance(tracer.class_lookup(value.cls, name), FunctionType) for name in _LENGTHS)


_LENGTHS = ("__len__", "__length_hint__")


def _ask_length(tracer: Tracer, value: ObjectValue) -> None:
    """operator.length_hint(value): only that it is asked, and what it raises, can be noticed."""
    for name in _LENGTHS:
        method = value.special(tracer, name)
        try:
            result = None if method is None else method.call(tracer, [], {})
            if result is not None and type(tracer.constant_of(result, "a length")) is int:
                tracer.length_of(result)
                return
        except Raised as raised:
            if not issubclass(raised.value.python_type(tracer), TypeError):
                raise
            result = None
        if result is not None:
            raise unsupported("special-method", f"{name} of {value.describe(tracer)} that returns no length")


def mapping_items(tracer: Tracer, value: Value) -> list[tuple[Value, Value]]:
    """Key and value pairs of a mapping, as `**mapping` takes them."""
    if isinstance(value, DictValue) and value.special(tracer, "keys") is None:
        return list(value.items(tracer))
    if tracer.class_lookup(value.python_type(tracer), "keys") is MISSING:
        raise unsupported("call", f"{value.describe(tracer)} in the place of a mapping")
    keys = tracer.call(tracer.get_attr(value, "keys"), [], {})
    return [(key, tracer.get_item(value, key)) for key in tracer.iterate(keys)]


def pairs(tracer: Tracer, value: Value) -> Iterator[tuple[Value, Value]]:
    """Pairs as `dict(value)` takes them: a mapping, or an iterable of pairs."""
    if isinstance(value, DictValue):
        yield from value.items(tracer)
        return
    for at, pair in enumerate(tracer.iterate(value)):
        if not may_iterate(tracer, pair):
            raise unsupported("call-builtin", f"{pair.describe(tracer)} in the place of a pair")
        parts = list(tracer.iterate(pair))
        if len(parts) != 2:
            text = f"dictionary update sequence element #{at} has length {len(parts)}; 2 is required"
            raise tracer.raised(ValueError, text)
        yield parts[0], parts[1]


def sorted_items(tracer: Tracer, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
    """`sorted(items, key=key, reverse=reverse)`."""
    by = items if key is None or tracer.is_none(key) else [tracer.call(key, [item], {}) for item in items]
    down = reverse is not None and tracer.truth(reverse)
    if len(items) <= sorting.MOST_SORTED and any(map(_is_of_program, by)):
        return _sorted_by_comparing(tracer, items, by, down)
    compared = [tracer.constant_of(item, "what is sorted by") for item in by]
    order = tracer.run_real(sorted, (range(len(items)),), {"key": compared.__getitem__, "reverse": down})
    return [items[at] for at in order]


def _is_of_program(value: Value) -> bool:
    return isinstance(value, ObjectValue) and not isinstance(value, DictValue)


def _sorted_by_comparing(tracer: Tracer, items: list[Value], by: list[Value], down: bool) -> list[Value]:
    """By what the objects' own `__lt__` says; downwards, equal ones stay in their order."""
    items, by = (items[::-1], by[::-1]) if down else (items, by)
    places = tracer.call(tracer.known(sorting.places_in_order), [tracer.list_of(by)], {})
    ordered = [items[tracer.index_of(place)] for place in tracer.iterate(places)]
    return ordered[::-1] if down else ordered
