"""Class statements and decorators that raise do so in captured code as in eager, with the same text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

import stator

SEEN: list[str] = []


def mutable_default(x: torch.Tensor) -> Any:
    @dataclasses.dataclass
    class Bad:
        items: list[Any] = []  # noqa: RUF008

    return x + 1, Bad


def mutable_default_of_a_field(x: torch.Tensor) -> Any:
    @dataclasses.dataclass
    class Bad:
        items: dict[str, Any] = dataclasses.field(default={"a": 1})

    return x + 1, Bad


def missing_default(x: torch.Tensor) -> Any:
    @dataclasses.dataclass
    class Bad:
        one: int = 1
        other: int  # type: ignore[misc]

    return x + 1, Bad


def name_hook(x: torch.Tensor) -> Any:
    class Refusing:
        def __set_name__(self, owner: type, name: str) -> None:
            SEEN.append(name)
            raise KeyError(name)

    class Bad:
        entry = Refusing()

    return x + 1, Bad


def outcome(function: Callable[..., Any]) -> Any:
    SEEN.clear()
    try:
        function(torch.ones(2))
    except Exception as error:
        notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("stator")]
        return type(error).__name__, str(error), notes, list(SEEN)
    return None


@pytest.mark.parametrize(
    "function",
    [mutable_default, mutable_default_of_a_field, missing_default, name_hook],
    ids=lambda one: one.__name__,
)
def test_they_raise_as_in_eager(function: Callable[..., Any]) -> None:
    stator.reset()
    assert outcome(stator.compile(function, backend="eager")) == outcome(function) is not None


def test_lists_that_are_no_defaults_of_fields_stay_in_the_graph() -> None:
    def function(x: torch.Tensor) -> Any:
        @dataclasses.dataclass
        class Good:
            count: int = 2
            shared: ClassVar[list[int]] = [3]
            plain = {4}

        return x + Good().count + Good.shared[0], Good.plain

    stator.reset()
    found, plain = stator.compile(function, backend="eager", fullgraph=True)(torch.ones(2))
    assert (found.tolist(), plain) == ([6.0, 6.0], {4})
