"""Empty slots break the graph: the program sees them as in eager."""

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


def by_question(thing: Counted, x: torch.Tensor) -> Any:
    if hasattr(thing, "count"):
        del thing.count
        return x * 2
    thing.count = 3
    return x * 3


@pytest.mark.parametrize("program", [by_handler, by_question])
def test_a_slot_that_is_set_between_calls(program: Callable[..., Any]) -> None:
    compiled, ours, eagers = stator.compile(program, backend="eager"), Counted(), Counted()
    for _ in range(5):
        x = torch.ones(2)
        assert torch.equal(compiled(ours, x), program(eagers, x))
        assert getattr(ours, "count", None) == getattr(eagers, "count", None)
