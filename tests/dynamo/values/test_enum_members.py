"""Objects of an enumeration that are no members yet: what `__new__` of the data's class makes."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch

import stator


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


@pytest.mark.filterwarnings("error")
def test_each_call_makes_its_own_object() -> None:
    def program(x: torch.Tensor, note: str) -> tuple[torch.Tensor, Any]:
        made = int.__new__(Color, 3)
        made.note = note  # type: ignore[attr-defined]
        return x + made, made

    run, x = stator.compile(program, backend="eager"), torch.ones(2)
    made = []
    for note in ("first", "second"):
        result, one = run(x, note)
        assert torch.equal(result, program(x, note)[0])
        made.append(one)
    assert [one.note for one in made] == ["first", "second"]


def test_an_alias_keeps_the_first_member() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        doubled = x * 2

        class Status(enum.IntEnum):
            def __new__(cls, value: int, phrase: str) -> Any:
                made = int.__new__(cls, value)
                made._value_ = value
                made.phrase = phrase  # type: ignore[attr-defined]
                return made

            FOUND = 1, "found"
            MOVED = 2, "moved"
            GONE = 2, "gone"

        return doubled, [(name, one.phrase, one.name) for name, one in Status.__members__.items()]  # type: ignore[attr-defined]

    x = torch.ones(2)
    assert stator.compile(program, backend="eager")(x)[1] == program(x)[1]
