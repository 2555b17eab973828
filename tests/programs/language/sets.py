"""Methods of sets go through their operands once, in order, as far as they do in the interpreter, and keep the members
that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

WHOLE = False  # CPython decides how far a set goes through an iterator


def numbers(*items: Any) -> Iterator[Any]:
    yield from items


def from_iterators(x: torch.Tensor) -> Any:
    mine = {1, 2, 3, 40}
    other = {3, 5}
    other.update(numbers(7, 8))
    return (
        x + 1,
        sorted(mine.union(numbers(9, 1), iter([2, 10]))),
        sorted(mine.intersection(numbers(2, 3, 9), iter([3, 2]))),
        sorted(mine.difference(numbers(2, 9), iter([40]))),
        sorted(mine.symmetric_difference(numbers(2, 9, 2))),
        (mine.isdisjoint(numbers(9, 2)), mine.issubset(numbers(1, 2, 3, 40, 5)), mine.issuperset(numbers(1, 2))),
        sorted(other),
    )


def which_of_equal_ones(x: torch.Tensor) -> Any:
    one, two = {1, 2}, {1.0, 3.0, 4.0}
    made = (
        one.intersection([1.0]),
        one.intersection(numbers(1.0, True)),
        one & two,
        two & one,
        {1} & {True},
        one.union([5, 5.0]),
        one.symmetric_difference([6, 6.0]),
        one | two,
    )
    return x + 1, [sorted(map(repr, each)) for each in made]


def as_far_as_needed(x: torch.Tensor) -> Any:
    mine = {1, 2}
    first, second, third = iter([5, 1, 6]), iter([1, 5, 6]), iter([1, 2, 3])
    return (
        x + 1,
        mine.isdisjoint(first),
        list(first),
        mine.issuperset(second),
        list(second),
        mine.issubset(third),
        [*third],
    )


def intersections_as_far_as_needed(x: torch.Tensor) -> Any:
    mine = {1, 2}
    first, second, third, fourth = iter([2, 1, 3]), iter([7, 2, 8]), iter([2, 1, 4]), iter([1, 2])
    both = mine.intersection(first, second)
    none = set().intersection(fourth)
    return x + 1, both, list(first), list(second), mine.intersection(third), list(third), none, list(fourth)


def dictionaries(x: torch.Tensor) -> Any:
    more = dict.fromkeys(range(0, 400, 9))
    mine, updated = {1, 2}, {1, 3}
    updated.update(more)
    return x + 1, [list(each) for each in (mine.union(more), mine.symmetric_difference(more), mine - {2}, updated)]


def operands_of_a_method_kept_in_a_loop(x: torch.Tensor) -> Any:
    """The method of the set and the maker of its operand change from turn to turn."""
    mine = set("november")
    made = []
    for data in ("123", "", "december"):
        for method in (mine.union, mine.intersection, mine.difference, mine.symmetric_difference):
            for given in (list, iter, lambda items: numbers(*items), lambda items: map(str, items)):
                made.append(sorted(method(given(data))))
    return x + 1, made
