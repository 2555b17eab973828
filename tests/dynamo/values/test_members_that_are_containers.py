"""Members of enumerations that are tuples, lists or dictionaries themselves end the graph."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Fields = collections.namedtuple("Fields", "first second")


class Plain(tuple):
    __slots__ = ()


class Pair(Plain, enum.Enum):
    A = ((1, 2),)
    B = ((3, 4),)


class Named(Fields, enum.Enum):
    A = 1, 2
    B = 3, [4]  # type: ignore[list-item]


class Items(list, enum.Enum):
    A = [1, 2]


class Table(dict, enum.Enum):
    A = {"k": 1}


def identity(x: torch.Tensor, a: Any) -> Any:
    return x * a[0], a is Pair.A, Pair.A is a, a is Pair.B, a == Pair.A, {Pair.A: 3}[a]


def as_a_tuple(x: torch.Tensor, a: Any) -> Any:
    one, two = a
    return x * sum(a), (*a, 1), a[:1], list(a), a.index(two), a < Pair.B, bool(a), one, a.name, a.value


def fields(x: torch.Tensor, a: Any) -> Any:
    return x * Named.A.first, Named.B.second, [member.first for member in Named], Named.A is Named((1, 2))


def of_a_list(x: torch.Tensor, a: Any) -> Any:
    return x * len(Items.A), list(Items.A), Items.A[-1]


def of_a_dictionary(x: torch.Tensor, a: Any) -> Any:
    return x * len(Table.A), dict(Table.A), len(Table.A) in Table.A


PROGRAMS = [identity, as_a_tuple, fields, of_a_list, of_a_dictionary]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_members_are_those_of_eager(program: Callable[..., Any]) -> None:
    compiled, x = stator.compile(program, backend="eager"), torch.arange(3.0)
    for _ in range(3):
        assert repr(compiled(x, Pair.A)) == repr(program(x, Pair.A))
        Items.A.append(4)
        Table.A[len(Table.A)] = 5
        Named.B.second.append(6)
