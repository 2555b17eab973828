"""`is` between objects of every kind that capture tells apart, reached in two ways: as arguments, items, in loops."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import stator


class Plain:
    value = 0

    def method(self) -> int:
        return 1


class NamedInt(int):
    pass


class NamedError(Exception):
    pass


def numbers() -> Any:
    yield 1


MADE: dict[str, Callable[[], Any]] = {
    "function": lambda: lambda: 1,
    "method": lambda: Plain().method,
    "method of C": lambda: [].append,
    "exception": lambda: NamedError(1),
    "generator": numbers,
    "iterator": lambda: iter([1, 2]),
    "zip": lambda: zip([1], [2], strict=True),
    "slice": lambda: slice(1, 2),
    "range": lambda: range(3, 9),
    "partial": lambda: functools.partial(max, 1),
    "tuple": lambda: tuple(map(int, "12")),
    "frozenset": lambda: frozenset([1, 2]),
    "list": lambda: [1],
    "dict": lambda: {1: 2},
    "deque": lambda: collections.deque([1]),
    "object": Plain,
    "int": lambda: int("100000"),
    "nan": lambda: float("nan"),
    "text": lambda: "".join(["ab", "cd"]),
    "subclass of int": lambda: NamedInt(3),
    "number of numpy": lambda: numpy.float64(1.5),
    "array": lambda: numpy.zeros(2),
    "tensor": lambda: torch.zeros(2),
    "device": lambda: torch.device("cpu"),
    "cell": lambda: types.CellType(1),
    "class": lambda: type("Made", (), {}),
}


@stator.disable
def unseen(*_: Any) -> None:
    return None


def two_arguments(a: Any, b: Any, x: torch.Tensor) -> Any:
    return a is b, a is not b, x + 1


def around_breaks(a: Any, b: Any, x: torch.Tensor) -> Any:
    kept = [a, b]
    other = a
    unseen()
    first = a is b
    unseen()
    return first, a is b, kept[0] is other, kept[1] is kept[0], x + 1


def nested_loops(a: Any, b: Any, x: torch.Tensor) -> Any:
    found = []
    for one in [a, b, a]:
        for other in (a, b):
            unseen()
            found.append((one is other, one is a, other is b))
            unseen()
            found.append((one is other, one is a, other is b))
    return found, x + 1


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return stator.compile(function, backend="eager")


@pytest.mark.parametrize("function", [two_arguments, around_breaks, nested_loops], ids=lambda it: it.__name__)
@pytest.mark.parametrize("kind", MADE)
def test_is_between_objects_from_outside(kind: str, function: Callable[..., Any]) -> None:
    one, other, x = MADE[kind](), MADE[kind](), torch.zeros(1)
    calls = [(one, other), (one, one), (other, one), (other, other)]
    for order in (calls, calls[::-1]):
        run = compiled(function)
        for pair in order:
            assert repr(run(*pair, x)) == repr(function(*pair, x))


@pytest.mark.parametrize("kind", MADE)
def test_what_is_given_back_is_the_object_that_came(kind: str) -> None:
    run = compiled(lambda a, x: (a, x + 1))
    for _ in range(3):
        it = MADE[kind]()
        assert run(it, torch.zeros(1))[0] is it


@pytest.mark.filterwarnings("error")
def test_numbers_that_change_are_compared_as_objects() -> None:
    run, x = stator.compile(two_arguments, backend="eager", dynamic=True), torch.zeros(1)
    for value in ("1000", "1001"):
        one, other = int(value), int(value)
        for pair in [(one, one), (one, other), (other, other), (one, other + 1)]:
            assert run(*pair, x)[:2] == two_arguments(*pair, x)[:2]


def test_an_item_is_found_by_identity() -> None:
    def found(items: list[Any], item: Any, x: torch.Tensor) -> Any:
        return item in items, items.count(item), x + 1

    run, x, nan, other = compiled(found), torch.zeros(1), float("nan"), float("nan")
    for items, item in [([nan], nan), ([nan], other), ([other, nan], nan), ([other, other], other)]:
        assert run(items, item, x)[:2] == found(items, item, x)[:2]


def test_a_change_through_one_name_is_seen_through_another() -> None:
    def turns(items: list[Plain], first: Plain) -> list[Any]:
        seen = []
        for one in items:
            for other in items:
                unseen()
                one.value += 1
                other.value += 10
                seen.append((one.value, other.value, first.value))
                unseen()
                first.value += 100
                seen.append((one.value, other.value))
        return seen

    def fresh() -> tuple[list[Plain], Plain]:
        one, other = Plain(), Plain()
        return [one, other, one], one

    run = compiled(turns)
    for _ in range(2):
        assert run(*fresh()) == turns(*fresh())


@pytest.mark.parametrize("kind", ["subclass of int", "number of numpy", "int"])
def test_a_number_of_a_subclass_is_a_plain_one_in_the_graph(kind: str) -> None:
    def scaled(number: Any, x: torch.Tensor) -> Any:
        return number, x * number

    run, number, x = stator.compile(scaled, backend="eager", fullgraph=True), MADE[kind](), torch.ones(2)
    for _ in range(2):
        given, result = run(number, x)
        assert given is number
        assert torch.equal(result, x * number)


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "element read twice": lambda a: a[1] is a[1],
    "element that is kept": lambda a: [one := a[1], one is one, [one, 2][0] is one],
    "elements of one iteration": lambda a: [one is other for one, other in zip(a, a, strict=True)],
    "element among others": lambda a: any(one is a[0] for one in [a[0], a[1]]),
    "values of elements": lambda a: [a[1] == a[1], a[1] + a[1], a[1] * 2 - a[0]],
    "nothing to squeeze": lambda a: a.squeeze() is a,
    "something to squeeze": lambda a: a[None].squeeze() is a,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_of_arrays(name: str) -> None:
    def program(a: Any, x: torch.Tensor) -> Any:
        return ARRAYS[name](a), x + 1

    array = numpy.arange(3.0)
    expected, _ = program(array, torch.ones(2))
    found, _ = stator.compile(program, backend="eager")(array, torch.ones(2))
    assert repr(found) == repr(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_tensor_without_a_conjugate_to_resolve_is_itself(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.resolve_conj() is x, torch.resolve_conj(x) is x, x + 1

    x = torch.ones(2, dtype=dtype)
    assert stator.compile(program, backend="eager")(x)[:2] == program(x)[:2]


def test_a_tuple_in_a_class_that_is_made_in_the_frame() -> None:
    def program(x: torch.Tensor, given: tuple[Any, ...]) -> Any:
        class Holding:
            held = given
            among = (given, 1)

            def get(self) -> Any:
                return self.held

        return Holding().get() is given, Holding().among[0] is given, Holding().get(), x + 1

    given = (Plain(), [1], (1, 2.5))
    found = stator.compile(program, backend="eager")(torch.ones(2), given)
    assert found[:2] == program(torch.ones(2), given)[:2]
    assert found[2] is given


@pytest.mark.parametrize("breaking", [False, True])
def test_tuples_that_are_constants_of_the_code_are_the_same_in_each_call(breaking: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        key = (9, 1)
        held = {(7, "b"): 1}
        held[key] = 2
        y = x + 1
        if breaking:
            stator.graph_break()
        return key, list(held), (3, (4, 5)), (4, 5), y * 2

    compiled = stator.compile(program, backend="eager")
    expected, found = program(torch.ones(2)), compiled(torch.ones(2))
    pairs = [(expected[0], found[0]), *zip(expected[1], found[1], strict=True), (expected[2], found[2])]
    assert all(one is other for one, other in pairs)
    assert expected[2][1] is found[2][1] and expected[3] is found[3]
