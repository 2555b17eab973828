"""Exception objects answer through the special methods of their classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


class Sized(ValueError):
    def __len__(self) -> int:
        return len(self.args)


class Answering(Exception):
    def __getattr__(self, name: str) -> str:
        return f"no {name}"


class Upper(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value.upper())


class Asked(Exception):
    def __getattribute__(self, name: str) -> Any:
        return "asked" if name == "code" else super().__getattribute__(name)


def truths(x: torch.Tensor) -> Any:
    found = []
    for error in (Falsy(1), Sized(), Sized(2), ValueError()):
        found.append((bool(error), not error, 1 if error else 0, [error and 3] == [3]))
    return x + 1, found, any((Falsy(), Sized())), all((Sized(1), ValueError()))


def raised(x: torch.Tensor) -> Any:
    try:
        raise Falsy("one")
    except Falsy as error:
        return x + 1, bool(error), error.args


def attribute(x: torch.Tensor) -> Any:
    error = Answering("one")
    error.known = 3  # type: ignore[attr-defined]
    return x + 1, error.missing, error.known, error.args, hasattr(error, "other"), getattr(error, "third", None)


@pytest.mark.parametrize("function", [truths, raised, attribute])
def test_special_methods_of_exceptions(function: Callable[..., Any]) -> None:
    expected = function(torch.ones(2))
    found = stator.compile(function, backend="eager", fullgraph=function is not attribute)(torch.ones(2))
    assert found[1:] == expected[1:]


def test_given_exceptions_are_asked_for_their_truth() -> None:
    def function(x: torch.Tensor, error: Exception) -> torch.Tensor:
        return x + 1 if error else x - 1

    compiled = stator.compile(function, backend="eager", fullgraph=True)
    for error in (Falsy(), ValueError(), Sized(), Sized(1)):
        assert torch.equal(compiled(torch.ones(2), error), function(torch.ones(2), error)), repr(error)


def test_groups_of_a_class_made_in_the_function() -> None:
    def function(x: torch.Tensor) -> Any:
        class Group(ExceptionGroup):
            def __bool__(self) -> bool:
                return False

            def derive(self, errors: Any) -> Group:
                return Group(self.message, errors)

        found = []
        try:
            raise Group("both", [TypeError(1), ValueError(2)])
        except* TypeError as error:
            found.append(error)
        except* ValueError as error:
            found.append(error)
        return x + 1, [(bool(each), 1 if each else 0, each.message) for each in found]

    assert stator.compile(function, backend="eager")(torch.ones(2))[1] == function(torch.ones(2))[1]


def test_attributes_through_methods_of_the_class() -> None:
    def function(x: torch.Tensor) -> Any:
        error, asked = Upper("one"), Asked("one")
        error.code = "low"  # type: ignore[attr-defined]
        return x + 1, error.code, asked.code, asked.args  # type: ignore[attr-defined]

    assert stator.compile(function, backend="eager")(torch.ones(2))[1:] == function(torch.ones(2))[1:]
