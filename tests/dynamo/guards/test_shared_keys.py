"""Keys and members that a copy has in common with the dictionary or set it was made of are the same objects in both."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


def _fresh() -> list[Any]:
    """Constants that no other object is, whatever was made before."""
    return [
        ("ab", int("4321")),
        (1, (2, float("2.5"))),
        float("3.75"),
        complex("1+2j"),
        int("123456"),
        bytes([97, 98]),
        frozenset([1, 2]),
        "".join(["with", " blank"]),
    ]


OF_DICTIONARIES: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "dict": dict,
    "copy": lambda d: d.copy(),
    "display": lambda d: {**d},
    "merged": lambda d: {"other": 1} | d,
    "update": lambda d: [made := {}, made.update(d)],
    "comprehension": lambda d: {key: (key,) for key in d},
    "pairs": lambda d: dict(d.items()),
    "zip": lambda d: dict(zip(d, d.values(), strict=True)),
    "fromkeys": dict.fromkeys,
    "list": list,
    "tuple of keys": lambda d: tuple(d.keys()),
    "items": lambda d: list(d.items()),
    "reversed": lambda d: list(reversed(d)),
    "set": set,
    "frozenset": frozenset,
    "ordered": lambda d: OrderedDict(d).popitem(last=False),
    "defaultdict": lambda d: defaultdict(list, d),
    "deque": deque,
    "counter": Counter,
    "sorted": lambda d: sorted(d, key=repr),
    "first": lambda d: next(iter(d)),
    "found again": lambda d: [key for key, value in d.items() if d[key] is value],
    "put in again": lambda d: (d.update({"new": d.pop(next(iter(d)))}), list(d), dict(d)),
    "moved": lambda d: [value := d.pop(key := next(iter(d))), d.update({key: value}), list(d)],
}
OF_SETS: dict[str, Callable[[Any], Any]] = {
    "set": set,
    "copy": lambda s: s.copy(),
    "frozenset": frozenset,
    "union": lambda s: s | {1},
    "intersection": lambda s: s & set(s),
    "difference": lambda s: s - {1},
    "list": list,
    "comprehension": lambda s: {one for one in s if one != 1},
    "sorted": lambda s: sorted(s, key=repr),
    "fromkeys": dict.fromkeys,
}


def _parts(found: Any) -> list[Any]:
    """An object and what it is made of, in an order of its own."""
    if isinstance(found, dict):
        inner = [part for pair in found.items() for part in pair]
    elif isinstance(found, (set, frozenset)):
        inner = sorted(found, key=repr)
    else:
        inner = list(found) if isinstance(found, (list, tuple, deque)) else []
    return [found, *(part for one in inner for part in _parts(one))]


def _same_as_in_eager(function: Callable[[Any], Any], make: Callable[[], Any], breaking: bool) -> None:
    def program(x: torch.Tensor, held: Any) -> Any:
        y = x + 1
        found = function(held)
        if breaking:
            stator.graph_break()
        return found, y * 2

    compiled = stator.compile(program, backend="eager")
    for _ in range(2):  # the second time with objects that nothing was compiled for
        for run in (program, compiled):
            held = make()
            own = list(map(id, _parts(list(held))[1:]))  # those that are there before
            kept = _parts([held])
            found, _ = run(torch.ones(2), held)
            shared = [own.index(id(part)) if id(part) in own else None for part in _parts(found)]
            if run is program:
                expected = shared
            else:
                assert shared == expected
            del kept


@pytest.mark.parametrize("breaking", [False, True])
@pytest.mark.parametrize("name", OF_DICTIONARIES)
def test_of_dictionaries(name: str, breaking: bool) -> None:
    _same_as_in_eager(OF_DICTIONARIES[name], lambda: {key: at for at, key in enumerate(_fresh())}, breaking)


@pytest.mark.parametrize("kind", [set, frozenset])
@pytest.mark.parametrize("name", OF_SETS)
def test_of_sets(name: str, kind: type) -> None:
    _same_as_in_eager(OF_SETS[name], lambda: kind(_fresh()), False)


WHOLE: dict[str, Callable[[tuple[Any, ...], tuple[Any, ...]], Any]] = {
    "slice": lambda t, e: t[:],
    "long slice": lambda t, e: t[-9:9],
    "nothing added": lambda t, e: t + e,
    "added to nothing": lambda t, e: e + t,
    "backwards": lambda t, e: t[::-1],
    "part": lambda t, e: t[1:],
}


@pytest.mark.parametrize("kind", [tuple, torch.Size])
@pytest.mark.parametrize("name", WHOLE)
def test_all_of_a_tuple_is_the_tuple(name: str, kind: Any) -> None:
    def program(x: torch.Tensor, t: Any, e: Any) -> Any:
        return WHOLE[name](t, e), x + 1

    compiled = stator.compile(program, backend="eager")
    for items in ([1000, 2000], []):
        t, e = kind(items), ()
        expected, _ = program(torch.ones(2), t, e)
        found, _ = compiled(torch.ones(2), t, e)
        assert (found, type(found), found is t) == (expected, type(expected), expected is t)


def test_which_key_an_object_is() -> None:
    def program(x: torch.Tensor, held: dict[Any, Any], one: Any) -> Any:
        return [key is one for key in held], x + 1

    compiled = stator.compile(program, backend="eager")
    pairs = [[(1, float("2.5")) for _ in range(2)], [float("2.5") for _ in range(2)]]
    for one, other in pairs:
        for held in ({one: 1}, {other: 1}, {one: 1}):
            assert compiled(torch.ones(2), held, one)[0] == program(torch.ones(2), held, one)[0]


@pytest.mark.parametrize("make", [lambda one: {one}, lambda one: {(1, one)}, lambda one: {frozenset([one])}])
def test_members_are_relied_on_exactly(make: Callable[[Any], Any]) -> None:
    def program(x: torch.Tensor, held: set[Any]) -> Any:
        for one in held:
            while isinstance(one, (tuple, frozenset)):
                one = list(one)[-1]
            return repr(one), math.copysign(2, one), x + 1

    compiled = stator.compile(program, backend="eager")
    for one in (0.0, -0.0, 0, False, 1, True, 1.0):
        held = make(one)
        assert compiled(torch.ones(2), held)[:2] == program(torch.ones(2), held)[:2]


def test_strings_in_keys_of_the_program_are_left_alone() -> None:
    name = "".join(["long", "name"])
    key = (1, name)
    stator.compile(lambda x, held: (list(held.values()), x + 1), backend="eager")(torch.ones(2), {key: 2.5})
    assert key[1] is name
