"""Guards on items of loops that go on behind a break: items of ranges are ints, those of others may change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from tests.differential import assert_same

import stator
from stator.dynamo import frame_compiler
from stator.dynamo.capture import capture


def counts(x: torch.Tensor, items: Iterator[Any]) -> torch.Tensor:
    for _ in items:
        x = x * 0.5 + 1
        stator.graph_break()
    return x.tanh()


def tells_types_apart(x: torch.Tensor, items: Iterator[Any]) -> torch.Tensor:
    for item in items:
        x = x + 1 if isinstance(item, int) else x - 2
        stator.graph_break()
    return x.tanh()


@pytest.fixture
def items_guarded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each capture, whether a guard reads an item of an iterator."""
    found: list[bool] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        captured = capture(*args, **kwargs)
        found.append(any(str(guard.source).startswith("upcoming(") for guard in captured.guards))
        return captured

    monkeypatch.setattr(frame_compiler, "capture", noted)
    return found


@pytest.mark.parametrize(
    ("items", "guarded"),
    [(range(4), False), (range(5, 1, -1), False), (range(1 << 70, (1 << 70) + 3), False), ([1, 2.5, "a", 3], True)],
)
def test_only_unused_items_that_may_have_other_types_are_guarded(
    items: Iterable[Any], guarded: bool, items_guarded: list[bool]
) -> None:
    compiled = stator.compile(counts, backend="eager")
    for _ in range(2):
        assert_same(compiled(torch.ones(2), iter(items)), counts(torch.ones(2), iter(items)))
    assert any(items_guarded) is guarded


@pytest.mark.parametrize("function", [counts, tells_types_apart])
def test_items_change_their_types(function: Callable[..., Any]) -> None:
    compiled = stator.compile(function, backend="eager")
    for items in (range(3), [1, 2.5, "a"], ["a", 1], range(2), (None, 4)):
        assert_same(compiled(torch.ones(2), iter(items)), function(torch.ones(2), iter(items)))


def test_an_item_that_is_used_is_guarded(items_guarded: list[bool]) -> None:
    def adds(x: torch.Tensor, items: Iterator[Any]) -> torch.Tensor:
        for item in items:
            x = x + item
            stator.graph_break()
        return x

    compiled = stator.compile(adds, backend="eager")
    for items in (range(4), range(3, 9), [1, 2.5], range(4)):
        assert_same(compiled(torch.ones(2), iter(items)), adds(torch.ones(2), iter(items)))
    assert any(items_guarded)
