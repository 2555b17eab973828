"""`__dict__` of instances in captured code: slots are no part of it; attributes that were deleted come last again."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import stator


class Plain:
    pass


class WithSlots:
    __slots__ = ("__dict__", "inside")


class BelowSlots(WithSlots):
    """Instances have the slot of the base class and a dictionary."""


def both(function, *arguments):
    compiled = stator.compile(function, backend="eager")
    return function(*arguments), compiled(*arguments)


def test_slots_of_an_object_from_outside_are_not_in_its_dictionary() -> None:
    def program(x, made):
        made.inside = 3
        made.other = 4
        return x + 1, dict(made.__dict__), vars(made) == {"other": 4}, "inside" in made.__dict__, list(made.__dict__)

    x = torch.rand(2)
    expected, actual = program(x, WithSlots()), stator.compile(program, backend="eager")(x, WithSlots())
    assert torch.equal(expected[0], actual[0]) and expected[1:] == actual[1:]


def test_slots_of_an_object_made_in_the_graph_are_not_in_its_dictionary() -> None:
    def program(x):
        made = BelowSlots()
        made.inside, made.other = 1, 2
        return x * 2, made.__dict__, vars(made) == {"other": 2}, made.inside

    expected, actual = both(program, torch.rand(2))
    assert torch.equal(expected[0], actual[0]) and expected[1:] == actual[1:]


def test_entries_beside_slots_are_those_of_the_dictionary() -> None:
    def program(x):
        made = BelowSlots()
        made.inside = 1
        made.__dict__["inside"] = 5
        return x * 2, made.__dict__, made.inside

    expected, actual = both(program, torch.rand(2))
    assert torch.equal(expected[0], actual[0]) and expected[1:] == actual[1:]


def test_an_attribute_written_again_after_it_was_deleted_is_the_last() -> None:
    def program(x, made):
        del made.first
        made.first = 5
        made.third = 6
        return x + 1, list(made.__dict__), list(vars(made).items())

    def fresh() -> Plain:
        made = Plain()
        made.first, made.second = 1, 2
        return made

    x, eager, compiled = torch.rand(2), fresh(), fresh()
    expected, actual = program(x, eager), stator.compile(program, backend="eager")(x, compiled)
    assert torch.equal(expected[0], actual[0]) and expected[1:] == actual[1:]
    assert list(vars(eager).items()) == list(vars(compiled).items()) == [("second", 2), ("first", 5), ("third", 6)]


def test_an_attribute_of_a_new_object_written_again_is_the_last() -> None:
    def program(x):
        made = Plain()
        made.first, made.second = 1, 2
        del made.first
        made.first = 5
        return x + 1, list(made.__dict__), vars(made)

    expected, actual = both(program, torch.rand(2))
    assert torch.equal(expected[0], actual[0]) and expected[1:] == actual[1:]
    assert list(expected[2]) == list(actual[2])


def test_an_entry_under_a_key_that_is_no_string() -> None:
    class Held:
        pass

    def program(x: torch.Tensor, held: Any) -> torch.Tensor:
        y = x + 1
        vars(held)[0, 1] = 2.5
        return y * 2

    held = Held()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = stator.compile(program, backend="eager")(torch.ones(2), held)
    assert vars(held) == {(0, 1): 2.5}
    assert torch.equal(found, torch.full((2,), 4.0))


def read_field(made: Any) -> Any:
    return made.__dict__["field"]


class Field:
    def __get__(self, made: Any, cls: type | None = None) -> Any:
        return made.__dict__.get("field", "none")

    def __set__(self, made: Any, value: Any) -> None:
        made.__dict__["field"] = made.__dict__.get("field", 0) + 2 * value

    def __delete__(self, made: Any) -> None:
        del made.__dict__["field"]
        made.deleted = True


class ReadOnly:
    """As in the tuples of SciPy: a property without a setter reads the entry of its own name."""

    field = property(read_field)

    def __init__(self, value: int) -> None:
        self.__dict__["field"] = value


class Doubling:
    field = Field()


def test_entries_behind_a_descriptor_of_the_class_are_written_past_it() -> None:
    def program(x, read_only, doubling):
        made = ReadOnly(42)
        read_only.__dict__["field"] += 1
        doubling.field = 10
        return x + made.field + read_only.field + doubling.field, made

    def run(function):
        read_only, doubling = ReadOnly(3), Doubling()
        outputs = [function(torch.ones(2), read_only, doubling) for _ in range(3)]
        return [(result.tolist(), vars(made)) for result, made in outputs], vars(read_only), vars(doubling)

    assert run(stator.compile(program, backend="eager", fullgraph=True)) == run(program)


def test_an_entry_behind_a_descriptor_of_the_class_is_deleted_past_it() -> None:
    def program(x, made):
        del made.__dict__["field"]
        return x + 1

    made = Doubling()
    made.field = 3
    stator.compile(program, backend="eager", fullgraph=True)(torch.ones(2), made)
    assert vars(made) == {}
