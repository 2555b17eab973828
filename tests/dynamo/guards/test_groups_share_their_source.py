"""itertools.groupby in captured code: its groups share one source, and end when the next group begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


@stator.disable
def unseen(*_: Any) -> None:
    return None


def kept_for_later(x: torch.Tensor) -> Any:
    return [(key, list(group)) for key, group in list(itertools.groupby("AAB"))], x + 1


def asked_late(x: torch.Tensor) -> Any:
    groups = itertools.groupby("AABBBAAAA")
    (_, one), (_, two), (_, three) = next(groups), next(groups), next(groups)
    found = [list(one), list(two), next(three)]
    rest = list(groups)
    return found, rest, list(three), x + 1


def with_breaks(x: torch.Tensor) -> Any:
    asked: list[Any] = []

    def half(number: int) -> int:
        asked.append(number)
        return number // 2

    for key, group in itertools.groupby(range(6), half):
        asked.append(("key", key))
        for member in group:
            asked.append(("member", member))
            unseen()
    return asked, x + 1


def in_time(x: torch.Tensor) -> Any:
    return [(key, sum(group)) for key, group in itertools.groupby([1, 1, 2, 2, 1])], list(itertools.groupby([])), x + 1


@pytest.mark.parametrize("function", [kept_for_later, asked_late, with_breaks, in_time], ids=lambda it: it.__name__)
def test_groups(function: Callable[..., Any]) -> None:
    run = stator.compile(function, backend="eager")
    for _ in range(2):
        assert repr(run(torch.zeros(1))) == repr(function(torch.zeros(1)))


def test_no_break() -> None:
    run = stator.compile(asked_late, backend="eager", fullgraph=True)
    assert repr(run(torch.zeros(1))) == repr(asked_late(torch.zeros(1)))
