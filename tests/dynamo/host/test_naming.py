"""Names of classes are read past metaclasses: a property of the program's runs only where the program reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator
from stator.base import counters
from stator.dynamo.host.naming import class_name, full_name, module_of, qualified_name

asked: list[str] = []


class Meta(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        asked.append("module")
        raise ZeroDivisionError

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        asked.append("name")
        raise ZeroDivisionError


class Scale(metaclass=Meta):
    factor = 3.0

    def __init__(self, shift: float) -> None:
        self.shift = shift

    @property
    def twice(self) -> float:
        return self.shift * 2

    @staticmethod
    def moved(x: Any) -> Any:
        return x + 1

    @classmethod
    def scaled(cls, x: Any) -> Any:
        return x * cls.factor

    def __call__(self, x: Any) -> Any:
        return x + self.twice


def uses(x: Any) -> Any:
    made = Scale(2.0)
    return made(Scale.scaled(Scale.moved(x))) * isinstance(made, Scale)


def fails(x: Any) -> Any:
    try:
        return x * Scale(1.0).missing  # type: ignore[attr-defined]
    except AttributeError as error:
        return x + len(str(error))


def matches(x: Any) -> Any:
    match Scale(4.0):
        case Scale(shift=shift):
            return x * shift
    return x


def leaves(x: Any) -> Any:
    return x + 1, Scale(5.0)


def is_given(x: Any, scale: Any) -> Any:
    return scale(x) + type(scale).factor


@pytest.mark.parametrize("function", [uses, fails, matches])
def test_a_class_whose_metaclass_has_properties_for_its_names_is_used_without_asking_them(function):
    counters.clear()
    x = torch.arange(3.0)
    expected = function(x)
    asked.clear()
    found = stator.compile(function, backend="eager")(x)
    assert asked == []
    assert counters.counts["dynamo.failed_frames"] == 0
    torch.testing.assert_close(found, expected)


def test_instances_of_it_come_in_and_go_out_without_asking_them():
    counters.clear()
    asked.clear()
    x = torch.arange(3.0)
    _, made = stator.compile(leaves, backend="eager")(x)
    found = stator.compile(is_given, backend="eager")(x, made)
    assert asked == []
    assert counters.counts["dynamo.failed_frames"] == 0
    torch.testing.assert_close(found, x + 10.0 + 3.0)


def test_the_program_s_own_question_is_answered_by_the_metaclass():
    def ask(x: Any) -> Any:
        try:
            return x, Scale.__name__
        except ZeroDivisionError:
            return x + 1, ""

    found, text = stator.compile(ask, backend="eager")(torch.zeros(2))
    assert text == ""
    torch.testing.assert_close(found, torch.ones(2))


def test_names_are_those_that_the_class_was_made_with():
    assert class_name(Scale) == "Scale"
    assert qualified_name(Scale) == "Scale"
    assert module_of(Scale) == __name__
    assert full_name(torch.nn.Linear) == "torch.nn.modules.linear.Linear"


def test_a_class_whose_module_is_no_text_has_an_empty_one():
    bare = type("bare", (), {"__module__": 3})
    assert module_of(bare) == ""
