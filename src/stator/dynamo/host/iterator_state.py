"""The upcoming items of built-in iterators, read without advancing them. No torch here, and no capture."""

from __future__ import annotations

import gc
from collections import OrderedDict
from operator import length_hint
from typing import Any

OVER_RANGES: tuple[type, ...] = (type(iter(range(0))), type(iter(range(1 << 100))))  # all items are ints
_PLAIN_ITERATORS: tuple[type, ...] = (
    type(iter([])),
    type(reversed([])),
    type(iter(())),
    *OVER_RANGES,
    type(iter({})),
    type(iter({}.values())),
    type(iter({}.items())),
    type(iter(OrderedDict())),
    type(iter(set())),
    type(iter("")),
    type(iter("\N{SNOWMAN}")),
)
# their length hints count the items that are left (those of other iterators hide that a dictionary changed its size)
_KNOW_THEIR_LENGTH = frozenset(_PLAIN_ITERATORS[:5])
READABLE = frozenset((*_PLAIN_ITERATORS, enumerate, zip))


def is_known_iterator(obj: object) -> bool:
    """Whether the object's class is in READABLE. (Compared by identity: a metaclass of the program may define
    __hash__.)"""
    return type(type(obj)) is type and type(obj) in READABLE


def _ahead(iterator: Any) -> tuple[Any, int, int]:
    """(sequence, index of the next item, step). For a dictionary or set, the sequence is a list of the remaining
    items."""
    made_by, arguments, *state = iterator.__reduce__()
    first = state[0] if state and state[0] is not None else 0
    return arguments[0], first, -1 if made_by is reversed else 1


def is_readable(iterator: Any) -> bool:
    """Whether the next item can be predicted; not after the size of the dictionary or set has changed."""
    try:
        iterator.__reduce__()
    except RuntimeError:
        return False
    return True


def has_upcoming(iterator: Any, index: int) -> bool:
    """Whether next(iterator) returns another item after `index` others."""
    if type(iterator) in _KNOW_THEIR_LENGTH:
        return length_hint(iterator) > index
    sequence, first, step = _ahead(iterator)
    return 0 <= first + index * step < len(sequence)


def upcoming(iterator: Any, index: int) -> Any:
    """The result of next(iterator) after `index` other items. Raises IndexError if the iterator ends before."""
    sequence, first, step = _ahead(iterator)
    if first + index * step < 0:
        raise IndexError(index)
    kind: Any = list if isinstance(sequence, list) else type(sequence)  # past overrides in a subclass
    return kind.__getitem__(sequence, first + index * step)


def range_step(iterator: Any) -> int:
    """The difference between the items of an iterator over a range."""
    return _ahead(iterator)[0].step


def next_items(iterator: Any) -> list[Any]:
    """The next item or its parts; not necessarily all of them."""
    if not is_readable(iterator):
        return []
    if type(iterator) not in (enumerate, zip):
        return [upcoming(iterator, 0)] if has_upcoming(iterator, 0) else []
    parts = [part for part in iterator.__reduce__()[1] if is_known_iterator(part)]
    return [item for part in parts for item in next_items(part)]


def iterated_container(iterator: Any) -> Any:
    """The list, dictionary or set that an iterator walks over; None if the program cannot change it, or at the end."""
    for referred in gc.get_referents(iterator):
        if isinstance(referred, (list, dict, set)):
            return referred
    return None


def iterated_part(iterator: Any, index: int) -> Any:
    """The index-th iterator inside enumerate() or zip()."""
    return iterator.__reduce__()[1][index]


def iterated_count(iterator: Any) -> int:
    return len(iterator.__reduce__()[1])


def enumerate_count(iterator: Any) -> int:
    """The next number of enumerate()."""
    return iterator.__reduce__()[1][1]


def is_strict(iterator: Any) -> bool:
    """Whether this zip() has strict=True."""
    return len(iterator.__reduce__()) > 2


def advance(iterator: Any, steps: int) -> None:
    for _ in range(steps):
        next(iterator, None)


def set_position(iterator: Any, position: int) -> None:
    """Set the index of the next item of a list iterator, forward or reversed."""
    iterator.__setstate__(position)


def keys_in_order(real: dict[Any, Any]) -> list[Any]:
    """The keys of a dictionary, past any override. An OrderedDict has its own order (move_to_end)."""
    return list(OrderedDict.__iter__(real) if isinstance(real, OrderedDict) else dict.__iter__(real))
