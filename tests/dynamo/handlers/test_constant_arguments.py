"""Functions of constants that run during capture: sizes that broadcast, pairs in order, pickled keywords.

And a strict zip that goes on behind a break.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import stator

X = torch.ones(3)


def broadcast(x: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
    return x.expand(torch.broadcast_shapes(*sizes)) + 1


def in_order(x: torch.Tensor, named: dict[str, Any]) -> torch.Tensor:
    for _, value in sorted(named.items()):
        x = x * 2 + value
    return x


def keyed(x: torch.Tensor, value: Any) -> tuple[torch.Tensor, bytes]:
    return x + 1, pickle.dumps(value)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (broadcast, [[torch.Size([3]), torch.Size([2, 1])], [torch.Size([3])], [torch.Size([1]), (4, 3)]]),
        (in_order, [{"b": X, "a": X * 2}, {"a": X, "b": X * 2}, {}]),
        (keyed, [{}, {"diag": False, "n": 2, "text": "a"}, {"n": 2, "diag": False}, (), (1.5, None, b"c")]),
    ],
)
def test_these_break_no_graph(function: Callable[..., Any], arguments: list[Any]) -> None:
    compiled = stator.compile(function, fullgraph=True)
    for argument in (*arguments, *arguments):
        assert str(compiled(X, argument)) == str(function(X, argument))


TEXT = "a text of several words"


@pytest.mark.parametrize("value", [{TEXT: TEXT}, {TEXT: "".join(TEXT)}, (TEXT.encode(), TEXT.encode()), [1], {"a": ()}])
def test_references_in_pickles_are_eager_s(value: Any) -> None:
    assert stator.compile(keyed, backend="eager")(X, value)[1] == pickle.dumps(value)


@pytest.mark.parametrize("lengths", [(3, 3), (0, 0), (2, 3), (3, 2), (1, 0)])
def test_a_strict_zip_behind_a_break(lengths: tuple[int, int]) -> None:
    def function(x: torch.Tensor, ones: list[int], others: list[int]) -> torch.Tensor:
        for one, other in zip(ones, others, strict=True):
            x = x * one + other
            stator.graph_break()
        return x + 1

    ones, others = (list(range(length)) for length in lengths)
    compiled = stator.compile(function, backend="eager")
    for _ in range(2):
        if lengths[0] == lengths[1]:
            assert torch.equal(compiled(X, ones, others), function(X, ones, others))
        else:
            with pytest.raises(ValueError, match=r"zip\(\) argument 2 is"):
                compiled(X, ones, others)
    reasons = {str(reason) for reason in stator.explain(function)(X, [1, 2], [3, 4]).break_reasons}
    assert all("requested" in reason for reason in reasons)
