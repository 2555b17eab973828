"""Regular expressions in captured code."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import stator

_NUMBERED = re.compile(r"(?P<name>[a-z]+)_(?P<index>\d+)")


def _plain(result: Any) -> Any:
    return tree_map(lambda part: part.tolist() if isinstance(part, torch.Tensor) else part, result)


def _parts(x: torch.Tensor, text: str) -> Any:
    found = _NUMBERED.match(text)
    if found is None:
        return x
    name, index = found.groups()
    return x + int(index), name, found["index"], found.span("name"), found.expand(r"\2 \1")


@pytest.mark.parametrize("text", ["layer_12", "cab", "ab_3 x_4"])
def test_results_are_eager_s_in_one_graph(text: str) -> None:
    x = torch.randn(2)
    result = stator.compile(_parts, backend="eager", fullgraph=True)(x, text)
    assert _plain(result) == _plain(_parts(x, text))


def test_matches_differ_by_identity() -> None:
    def program(x: torch.Tensor, one: re.Match[str], other: re.Match[str]) -> Any:
        return x + (one is other), one == other, {one: 1}.get(other), one

    compiled = stator.compile(program, backend="eager")
    matches = [re.match("a", "abc") for _ in range(3)]
    for one, other in ((0, 0), (0, 1), (1, 1), (2, 1), (2, 2)):
        given = torch.ones(1), matches[one], matches[other]
        found, expected = compiled(*given), program(*given)  # type: ignore[arg-type]
        assert torch.equal(found[0], expected[0]) and found[1:3] == expected[1:3] and found[3] is expected[3]


def test_a_match_behind_a_break_compiles_once() -> None:
    def program(x: torch.Tensor, text: str) -> Any:
        y = x + 1
        stator.graph_break()
        found = _NUMBERED.match(text)
        stator.graph_break()
        return y * 2, found and found.groups()

    compiled = stator.compile(program, backend="eager")
    compiled(torch.ones(1), "layer_1")
    with stator.assert_no_recompile():  # the frame behind the match breaks there
        for _ in range(3):
            assert compiled(torch.ones(1), "layer_1")[1] == ("layer", "1")
