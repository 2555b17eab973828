"""What captured code puts in the place of the standard library's own objects: their class, their end, what they keep.

Never: their items (test_language.py).
"""

from __future__ import annotations

import itertools
import pickle
from typing import Any, Protocol, runtime_checkable

import torch

import stator


def _first(row: tuple[int, int]) -> int:
    return row[0]


ROWS = [(0, 1), (0, 2), (1, 3)]


def test_a_group_that_leaves_the_graph_is_the_iterator_of_c() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[Any], type]:
        groups = itertools.groupby(ROWS, _first)
        _, group = next(groups)
        x = x + 1
        kept = pickle.dumps(group)
        return x * 2, list(pickle.loads(kept)), type(group)

    x = torch.arange(3.0)
    expected, found = f(x), stator.compile(f)(x)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_an_iterator_of_calls_that_leaves_the_graph_is_that_of_c() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, int, type]:
        calls = iter(int, 1)
        x = x + 1
        kept = pickle.dumps(calls)
        return x * 2, next(pickle.loads(kept)), type(calls)

    x = torch.arange(3.0)
    expected, found = f(x), stator.compile(f)(x)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_an_iterator_of_calls_ends_where_the_function_stops() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        left = [1, 2]

        def taken() -> int:
            if not left:
                raise StopIteration
            return left.pop()

        for number in iter(taken, 7):
            x = x * 10 + number
        return x

    x = torch.arange(3.0)
    assert torch.equal(stator.compile(f)(x), f(x))


@runtime_checkable
class Sized(Protocol):
    size: int


class Unsized:
    pass


def test_a_class_registered_with_a_protocol_is_one_of_its_own() -> None:
    def f(x: torch.Tensor, other: Unsized) -> torch.Tensor:
        return x + 1 if isinstance(other, Sized) else x - 1

    compiled, x = stator.compile(f), torch.arange(3.0)
    assert torch.equal(compiled(x, Unsized()), x - 1)
    Sized.register(Unsized)
    assert torch.equal(f(x, Unsized()), x + 1)
    assert torch.equal(compiled(x, Unsized()), x + 1)


class Declared(Sized):
    pass


def test_a_class_below_a_protocol_is_one_of_its_own_without_its_members() -> None:
    def f(x: torch.Tensor, other: Declared) -> torch.Tensor:
        return x + 1 if isinstance(other, Sized) else x - 1

    x = torch.arange(3.0)
    assert torch.equal(f(x, Declared()), x + 1)
    assert torch.equal(stator.compile(f)(x, Declared()), x + 1)
