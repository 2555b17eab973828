"""What built-in operations raise in captured code is the program's to catch: of the same type, with the same text."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

OPERATIONS: dict[str, Callable[[list[int]], Any]] = {
    "parameters of what has none": lambda items: list[int][int],
    "no subscript": lambda items: typing.Never[int],  # type: ignore[index]
    "slice without step": lambda items: items[::0],
    "assigned slice without step": lambda items: items.__setitem__(slice(0, 2, 0), []),
    "deleted slice without step": lambda items: items.__delitem__(slice(None, None, 0)),
    "too many items for a slice": lambda items: items.__setitem__(slice(None, None, 2), [1, 2, 3, 4]),
    "triples for a dictionary": lambda items: dict([(1, 2, 3)]),  # type: ignore[list-item]
    "slice of nothing": lambda items: slice(),  # type: ignore[call-overload]
    "a namespace of a number": lambda items: types.SimpleNamespace(1),
    "a part that an error does not take": lambda items: ImportError("a", invalid=1),  # type: ignore[call-arg]
    "three arguments of super": lambda items: super(1, 2, 3),  # type: ignore[call-overload]
    "a traceback that is none": lambda items: setattr(ValueError(), "__traceback__", 5),
    "a cause that is none": lambda items: setattr(ValueError(), "__cause__", 5),
    "slice of four": lambda items: slice(1, 2, 3, 4),  # type: ignore[call-overload]
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_error_is_python_s(name: str) -> None:
    operation = OPERATIONS[name]

    def caught(items: list[int], x: torch.Tensor) -> Any:
        try:
            return operation(items), x
        except (TypeError, ValueError) as error:
            return type(error), str(error), x + 1

    assert repr(stator.compile(caught, backend="eager")([1, 2, 3], torch.zeros(1))) == repr(
        caught([1, 2, 3], torch.zeros(1))
    )


def test_a_circle_of_contexts_ends() -> None:
    def circle(x: torch.Tensor) -> Any:
        try:
            try:
                raise ValueError(1)
            except ValueError as error:
                error.__context__ = error
                raise TypeError(2)  # noqa: B904
        except TypeError as error:
            caught = error
        context = caught.__context__
        return context is not None and context.__context__ is context, x + 1

    assert repr(stator.compile(circle, backend="eager")(torch.zeros(1))) == repr(circle(torch.zeros(1)))


class Colour(enum.Enum):
    RED = 1


def test_dict_of_an_enumeration_is_the_class_s() -> None:
    def names(member: Colour, x: torch.Tensor) -> Any:
        return [name for name in type(member).__dict__ if not name.startswith("_")], x + 1

    assert repr(stator.compile(names, backend="eager")(Colour.RED, torch.zeros(1))) == repr(
        names(Colour.RED, torch.zeros(1))
    )


def test_the_text_of_an_error_follows_its_attributes() -> None:
    def text(x: torch.Tensor) -> Any:
        error = UnicodeEncodeError("baz", "xxxxx", 1, 5, "foo")
        before = str(error)
        error.end = 2
        between = str(error)
        error.reason = "bar"
        again = ImportError("test")
        again.__init__("other", name="part")  # type: ignore[misc]
        return before, between, str(error), (again.msg, again.name, again.args), x + 1

    assert repr(stator.compile(text, backend="eager")(torch.zeros(1))) == repr(text(torch.zeros(1)))


class Pair(typing.TypedDict):
    one: int


def test_a_class_whose_metaclass_makes_something_else() -> None:
    def made(x: torch.Tensor) -> Any:
        pair = Pair(one=1)
        return pair, type(pair) is dict, x + 1

    assert repr(stator.compile(made, backend="eager")(torch.zeros(1))) == repr(made(torch.zeros(1)))
