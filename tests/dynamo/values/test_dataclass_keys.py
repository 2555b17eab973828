"""Objects of dataclasses with a generated hash as keys: equal objects are one key, made inside or from outside."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import pytest
import torch
from tests.dynamo.expressions import check_expression

import stator


@dataclasses.dataclass(frozen=True)
class Size:
    height: int
    name: str = "x"
    note: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class Pair:
    first: Size
    rest: tuple[int, ...] = ()


@dataclasses.dataclass(unsafe_hash=True)
class Changeable:
    value: float


@dataclasses.dataclass(frozen=True)
class Unhashable:
    items: Any


KEY = Size(1)
TABLE = {KEY: 5, Size(2): 7, Pair(Size(3), (1, 2)): 8, Changeable(1.5): 9}
X = torch.ones(2)

EXPRESSIONS = """
TABLE[KEY], TABLE[Size(2)], TABLE[Pair(Size(3, note=x), (1, 2))], TABLE[Changeable(1.5)]
TABLE.get(Size(9)), Size(2) in TABLE, Size(2, "y") in TABLE
{Size(1): x, Size(2): 2, Size(1, note=3): x + 3}
[one.note for one in {Size(1, note=1): 1, Size(1, note=2): 2}]
len({Size(1), Size(1), Size(2), KEY}), Size(1) in {KEY}, KEY in {Size(1)}
hash(Size(1)) == hash(KEY), hash(KEY) == hash(Size(2)), hash(Changeable(1.5)) == hash(1.5)
{KEY: 1, **TABLE}[Size(1)]
dict.fromkeys([Size(1), Size(2), Size(1)], 0)
{Unhashable([1]): 1}
{Unhashable((1, 2)): 1}
""".strip().splitlines()


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression(text: str) -> None:
    check_expression(text, globals())


def test_the_key_of_each_call() -> None:
    def program(x: torch.Tensor, key: Any) -> Any:
        made = {key: x}
        made[Size(1)] = x + 2
        return x * TABLE[key], made, next(iter(made)) is key

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for key in (KEY, Size(1), Size(2), Size(1, note=[]), Size(2), Changeable(1.5), Size(1)):
        assert repr(compiled(X, key)) == repr(program(X, key))
    with pytest.raises(KeyError, match=r"Size\(height=4"):
        compiled(X, Size(4))


def test_an_entry_that_comes_later() -> None:
    table: dict[Any, Any] = {}

    def program(x: torch.Tensor) -> Any:
        return x + (table.get(Size(3)) or 1)

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    assert compiled(X).tolist() == [2, 2]
    table[Size(3)] = 4
    assert compiled(X).tolist() == [5, 5]
    table[Size(3)] = 6
    assert compiled(X).tolist() == [7, 7]


def test_a_cache_that_is_filled_inside() -> None:
    cache: dict[Any, torch.Tensor] = {}

    def program(x: torch.Tensor, size: int) -> torch.Tensor:
        key = Size(size)
        if key not in cache:
            cache[key] = x * size
        return cache[key] + 1

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for size in (2, 3, 2, 3, 2):
        assert compiled(X, size).tolist() == [size + 1.0] * 2
    assert list(cache) == [Size(2), Size(3)] and cache[Size(2)].tolist() == [2, 2]


def test_a_changed_object() -> None:
    def program(x: torch.Tensor, key: Changeable) -> Any:
        key.value += 1
        return x, key in TABLE

    compiled = stator.compile(program, backend="eager")
    for start in (0.5, 0.5, 3.0, 0.5):
        assert compiled(X, Changeable(start))[1] is (start == 0.5)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    value: int


@dataclasses.dataclass(frozen=True)
class Unhashed:
    value: int
    also: Any = dataclasses.field(default=(), hash=False)


@pytest.mark.parametrize("kind", [Slotted, Unhashed])
def test_other_dataclasses_break(kind: Any) -> None:
    compiled = stator.compile(lambda x: (x * 2, {kind(1): 3}[kind(1)]), backend="eager")
    assert compiled(X)[1] == 3


def test_objects_of_the_program_are_not_kept_alive() -> None:
    def run() -> Any:
        key = Size(77)
        table = {key: 1}
        stator.compile(lambda x: (x, table[key], list(table)), backend="eager", fullgraph=True)(X)
        return weakref.ref(key)

    gone = run()
    gc.collect()
    assert gone() is None
