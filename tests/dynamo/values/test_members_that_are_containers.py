"""Members of enumerations that are tuples, lists or dictionaries themselves: a member is one object wherever it was
found, and what it holds is what it holds in this call.
"""

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


class Counted(Plain, enum.Enum):
    A = ((1, 2),)

    def __len__(self) -> int:
        return 7


class Items(list, enum.Enum):
    A = [1, 2]


class Table(dict, enum.Enum):
    A = {"k": 1}


class Text(bytearray, enum.Enum):
    A = b"ab"


class Group(frozenset, enum.Enum):
    A = frozenset((1, 2))


def identity(x: torch.Tensor, a: Any) -> Any:
    return x * a[0], a is Pair.A, Pair.A is a, a is Pair.B, a == Pair.A, {Pair.A: 3}[a]


def made_from_its_value(x: torch.Tensor, a: Any) -> Any:
    return x * len(Pair.A), Pair((1, 2)) is Pair.A


def matched(x: torch.Tensor, a: Any) -> Any:
    match a:
        case Pair.B:
            return x
        case Pair.A:
            return x + 1
    return x + 2


def as_a_tuple(x: torch.Tensor, a: Any) -> Any:
    one, two = a
    return x * sum(a), (*a, 1), a[:1], list(a), a.index(two), a < Pair.B, bool(a), one, a.name, a.value


def fields(x: torch.Tensor, a: Any) -> Any:
    return x * Named.A.first, Named.B.second, [member.first for member in Named], Named.A is Named((1, 2))


def own_length(x: torch.Tensor, a: Any) -> Any:
    return x * len(Counted.A), Counted.A[0], list(Counted.A)


def of_a_list(x: torch.Tensor, a: Any) -> Any:
    return x * len(Items.A), list(Items.A), Items.A[-1]


def of_a_dictionary(x: torch.Tensor, a: Any) -> Any:
    return x * len(Table.A), dict(Table.A), len(Table.A) in Table.A


def of_bytes(x: torch.Tensor, a: Any) -> Any:
    return x * len(Text.A), bytes(Text.A)


def of_a_set(x: torch.Tensor, a: Any) -> Any:
    return x * len(Group.A), 1 in Group.A, Group.A | {4}, Group(frozenset((1, 2))) is Group.A


def made_inside(x: torch.Tensor, a: Any) -> Any:
    class Inner(Fields, enum.Enum):
        A = 1, 2
        B = 3, 4

    return x * Inner.A.first + Inner.B.second


PROGRAMS = [
    *(identity, made_from_its_value, matched, as_a_tuple, fields, own_length, of_a_list, of_a_dictionary, of_bytes),
    *(of_a_set, made_inside),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_members_are_those_of_eager(program: Callable[..., Any]) -> None:
    compiled, x = stator.compile(program, backend="eager"), torch.arange(3.0)
    for _ in range(3):
        assert repr(compiled(x, Pair.A)) == repr(program(x, Pair.A))
        Items.A.append(4)
        Table.A[len(Table.A)] = 5
        Text.A.append(99)
        Named.B.second.append(6)


def test_a_list_given_as_an_argument_is_read_in_each_call() -> None:
    def program(x: torch.Tensor, a: Any) -> Any:
        a.append(8)
        return x * len(a), list(a), a is Items.A

    compiled, x = stator.compile(program, backend="eager"), torch.ones(1)
    for _ in range(3):
        before = list(Items.A)
        assert compiled(x, Items.A) == (torch.tensor([len(before) + 1.0]), [*before, 8], True)
