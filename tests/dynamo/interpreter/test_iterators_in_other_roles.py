"""Iterators that came from outside, which are another call's very iterators, or over what that call changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator

Made = tuple[Any, ...]


def numbers() -> Iterator[int]:
    return iter([1, 2, 3, 4])


def from_both(x: torch.Tensor, one: Any, other: Any) -> torch.Tensor:
    return x + next(one) + 10 * next(other)


def through_enumerate(x: torch.Tensor, one: Any, other: Any) -> torch.Tensor:
    first, between, last = next(one), next(other), next(one)
    return x + first[1] + 10 * between + 100 * last[1]


def through_zip(x: torch.Tensor, one: Any, other: Any) -> torch.Tensor:
    first, second = next(one)
    return x + first + 10 * second + 100 * next(other)


def one_iterator(around: Callable[[Any], Any]) -> Made:
    shared = numbers()
    return around(shared), shared


def two_iterators(around: Callable[[Any], Any]) -> Made:
    return around(numbers()), numbers()


def check(function: Callable[..., Any], makers: list[Callable[[], Made]]) -> None:
    compiled = stator.compile(function, backend="eager")
    for make in makers:
        assert torch.equal(compiled(torch.ones(1), *make()), function(torch.ones(1), *make()))


@pytest.mark.parametrize("first", [one_iterator, two_iterators])
@pytest.mark.parametrize(
    ("function", "around"),
    [(from_both, iter), (through_enumerate, enumerate), (through_zip, lambda it: zip(it, it, strict=False))],
    ids=["plain", "enumerate", "zip"],
)
def test_two_names_of_one_iterator(function: Any, around: Any, first: Any) -> None:
    second = one_iterator if first is two_iterators else two_iterators
    check(function, [lambda: first(around), lambda: second(around), lambda: first(around)])


def changing(x: torch.Tensor, values: list[int], steps: Any) -> torch.Tensor:
    first = next(steps)
    values[1] = 50
    return x + first + sum(steps)


def over_the_changed_list() -> Made:
    values = [1, 2]
    return values, iter(values)


def over_another_list() -> Made:
    return [1, 2], iter([1, 2])


@pytest.mark.parametrize("first", [over_the_changed_list, over_another_list])
def test_an_iterator_over_what_is_changed_meanwhile(first: Callable[[], Made]) -> None:
    check(changing, [first, over_the_changed_list, over_another_list])


def adding(x: torch.Tensor, owner: Any, names: Any) -> torch.Tensor:
    next(names)
    owner.second = 7
    return x + sum(len(name) for name in names)


class Owner:
    def __init__(self) -> None:
        self.first, self.second = 1, 2


def over_its_attributes() -> Made:
    owner = Owner()
    return owner, iter(vars(owner))


def over_attributes_of_another() -> Made:
    return Owner(), iter(vars(Owner()))


@pytest.mark.parametrize("first", [over_its_attributes, over_attributes_of_another])
def test_an_iterator_over_the_attributes_that_are_written(first: Callable[[], Made]) -> None:
    check(adding, [first, over_its_attributes, over_attributes_of_another])


class Doubled(map):
    """Its items are not those of a map."""

    def __next__(self):
        return super().__next__() * 2

    def named(self):
        return type(self).__name__


def test_a_class_below_map_is_no_map():
    def program(x):
        found = Doubled(abs, [-1, 2, -3])
        return x + 1, type(found), found.named(), next(found), list(found)

    def given(x, found):
        return x + 1, type(found), next(found), list(found)

    x = torch.ones(2)
    for function, make in ((program, lambda: ()), (given, lambda: (Doubled(abs, [-1, 2, -3]),))):
        compiled = stator.compile(function, backend="eager")
        for _ in range(2):
            actual, expected = compiled(x, *make()), function(x, *make())
            assert torch.equal(actual[0], expected[0]) and actual[1:] == expected[1:]
