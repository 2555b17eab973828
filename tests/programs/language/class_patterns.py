"""Patterns with classes, which end the graph."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping

WHOLE = False


class Table(Mapping):
    """A mapping that counts how often it is read."""

    def __init__(self, entries):
        self.entries = entries
        self.reads = 0

    def __getitem__(self, key):
        self.reads += 1
        return self.entries[key]

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)


class Own(dict):
    """Patterns call `get`, not `__getitem__`."""

    def get(self, key, default=None):
        return key


class Shade(enum.Enum):
    DARK = 1


def mapping_patterns(x):
    nested = {"type": "add", "parts": [x, {"type": "number", "value": 2}]}
    table, out = Table({"k": x}), []
    for subject in (
        nested,
        {"k": x, "l": 2},
        {"k": 1},
        {"k": None},
        {},
        defaultdict(int, m=1),
        table,
        Own(k=3),
        [1],
        "k",
    ):
        match subject:
            case {"type": "add", "parts": [first, {"type": "number", "value": int(number)}]}:
                out.append(("add", first, number))
            case {"k": first, "l": 2, **rest}:
                out.append(("both", first, rest))
            case {"k": None}:
                out.append("none")
            case {"missing": _} | {"k": int()}:
                out.append("either")
            case {"k": first, **rest}:
                out.append(("one", first, rest))
            case {}:
                out.append(("mapping", len(subject)))
            case _:
                out.append("other")
    match {Shade.DARK: x, 2: x + 1}:
        case {Shade.DARK: dark, 2.0: second}:
            out.append((dark, second))
    return x + 1, out, table.reads


def class_patterns(x):
    def kind(value):
        match value:
            case str() | None:
                return "text"
            case Point(0, second=second):
                return second
            case Point(first):
                return first
        return None

    return x + 1, [kind(value) for value in ("a", None, Point(0, x), Point(x, 0), 3)]


class Point:
    __match_args__ = ("first", "second")

    def __init__(self, first, second):
        self.first, self.second = first, second
