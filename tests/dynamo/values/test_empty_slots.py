"""Slots that hold nothing: what the program does then is relied on, until they are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


class Counted:
    __slots__ = ("count",)


def by_handler(thing: Counted, x: torch.Tensor) -> Any:
    try:
        before = thing.count
    except AttributeError as error:
        before = -1 if "count" in str(error) else 100
    thing.count = before + 1
    return x + thing.count


def by_default(thing: Counted, x: torch.Tensor) -> Any:
    thing.count = getattr(thing, "count", -1) + 1
    return x + thing.count


def by_question(thing: Counted, x: torch.Tensor) -> Any:
    if hasattr(thing, "count"):
        del thing.count
        return x * 2
    thing.count = 3
    return x * 3


def by_deletion(thing: Counted, x: torch.Tensor) -> Any:
    try:
        del thing.count
    except AttributeError:
        thing.count = 1
    return x + hasattr(thing, "count")


@pytest.mark.parametrize("program", [by_handler, by_default, by_question, by_deletion])
def test_a_slot_that_is_set_between_calls(program: Callable[..., Any]) -> None:
    compiled, ours, eagers = stator.compile(program, backend="eager"), Counted(), Counted()
    for _ in range(5):
        x = torch.ones(2)
        assert torch.equal(compiled(ours, x), program(eagers, x))
        assert getattr(ours, "count", None) == getattr(eagers, "count", None)
