"""StopIteration that the program raises where something iterates: it leaves a generator as RuntimeError with a cause,
and ends what is iterated in C."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import stator


def stop_at_two(number: int) -> int:
    if number == 2:
        raise StopIteration(number)
    return number


def resumed() -> Any:
    numbers = map(stop_at_two, [1, 2, 3])
    return list(numbers), list(numbers)


WAYS: dict[str, Callable[[], Any]] = {
    "list of map": lambda: list(map(stop_at_two, range(4))),
    "dict of map": lambda: dict(map(lambda i: (i, stop_at_two(i)), range(4))),  # noqa: C417
    "sorted map": lambda: sorted(map(stop_at_two, range(4))),
    "zip of map": lambda: list(zip(map(stop_at_two, range(4)), range(4), strict=False)),
    "map that goes on": resumed,
    "filter": lambda: list(filter(stop_at_two, [1, 2, 3])),
    "takewhile": lambda: list(itertools.takewhile(stop_at_two, [1, 2, 3])),
    "dropwhile": lambda: list(itertools.dropwhile(stop_at_two, [1, 2, 3])),
    "starmap": lambda: list(itertools.starmap(stop_at_two, [(1,), (2,), (3,)])),
    "accumulate": lambda: list(itertools.accumulate([1, 2, 3], lambda a, b: stop_at_two(b))),
    "groupby": lambda: [key for key, _ in itertools.groupby([1, 2, 3], stop_at_two)],
    "generator": lambda: list(stop_at_two(i) for i in range(4)),  # noqa: C400
    "list": lambda: [stop_at_two(i) for i in range(4)],
}


@pytest.mark.parametrize("way", WAYS)
def test_what_iterates_ends_or_raises(way: str) -> None:
    make = WAYS[way]

    def function(x: torch.Tensor) -> Any:
        x = torch.tanh(x)
        try:
            found = make()
        except Exception as error:
            found = (repr(error), repr(error.__cause__), repr(error.__context__), error.__suppress_context__)
        return x + 1, found

    x = torch.ones(2)
    expected = function(x)
    got = stator.compile(function, backend="eager")(x)
    assert torch.equal(got[0], expected[0]) and got[1] == expected[1]


@contextmanager
def waiting() -> Any:
    yield


class Stop(StopIteration):
    pass


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("kind", [StopIteration, Stop])
def test_it_passes_through_a_context_manager_as_it_is(kind: type[StopIteration], breaks: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        stop = kind("spam")
        try:
            with waiting():
                x = x + 1
                if breaks:
                    stator.graph_break()
                raise stop
        except Exception as error:
            return x * 2, error is stop

    x = torch.ones(2)
    result, same = stator.compile(function, backend="eager")(x)
    assert torch.equal(result, (x + 1) * 2) and same


class Telling(StopIteration):
    pass


def told(number: int) -> int:
    if number == 2:
        raise StopIteration(number, "two")
    if number == 3:
        raise Telling(number)
    return number


class Counting:
    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        self.number += 1
        return told(self.number)


def returning() -> Any:
    for _ in Counting():  # it ends by a StopIteration of its own, which is not that of the generator
        pass
    yield 1
    return 7


def delegating(iterator: Any) -> Any:
    result = yield from iterator
    yield ("result", result)


def second(iterator: Any) -> Any:
    next(iterator)
    return next(iterator)


ENDS: dict[str, Callable[[], Any]] = {
    "map": lambda: next(map(told, [2])),
    "map of a subclass": lambda: next(map(told, [3])),
    "method of map": lambda: map(told, [2]).__next__(),
    "with a default": lambda: next(map(told, [2]), "default"),
    "filter": lambda: next(filter(told, [2])),
    "zip of map": lambda: next(zip(map(told, [2]), [1], strict=False)),
    "enumerate of map": lambda: next(enumerate(map(told, [3]))),
    "object": lambda: second(Counting()),
    "enumerate of object": lambda: second(enumerate(Counting())),
    "map of object": lambda: second(map(int, Counting())),
    "zip of object": lambda: second(zip(Counting(), [1, 2], strict=False)),
    "zip with a shorter list": lambda: second(zip(Counting(), [1], strict=False)),
    "chain of object": lambda: second(itertools.chain(Counting())),
    "islice of object": lambda: second(itertools.islice(Counting(), 5)),
    "generator": lambda: second(returning()),
    "enumerate of generator": lambda: second(enumerate(returning())),
    "list behind another": lambda: (list(Counting()), next(iter([]))),
    "enumerate of a generator without a result": lambda: second(enumerate(i for i in list(Counting())[:1])),
    "yield from map": lambda: list(delegating(map(told, [1, 2]))),
    "yield from object": lambda: list(delegating(Counting())),
    "yield from enumerate": lambda: list(delegating(enumerate(Counting()))),
    "yield from list": lambda: (list(Counting()), list(delegating([1, 2]))),
}


@pytest.mark.parametrize("way", ENDS)
def test_what_leaves_next_at_the_end(way: str) -> None:
    make = ENDS[way]

    def function(x: torch.Tensor) -> Any:
        x = torch.tanh(x)
        try:
            found = make()
        except StopIteration as error:
            found = (repr(error), error.value)
        return x + 1, found

    x = torch.ones(2)
    expected = function(x)
    got = stator.compile(function, backend="eager")(x)
    assert torch.equal(got[0], expected[0]) and got[1] == expected[1]


def test_a_value_that_the_program_writes() -> None:
    def function(x: torch.Tensor) -> Any:
        error = StopIteration("first")
        before = error.value
        error.value = "second"
        return x + 1, before, error.value, error.args

    x = torch.ones(2)
    assert stator.compile(function, backend="eager")(x)[1:] == function(x)[1:]
