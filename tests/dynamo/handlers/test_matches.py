"""Regular expressions and tables of characters in captured code: no reason to end a graph, nor to compile again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import stator
from stator.base import counters

Program = Callable[[torch.Tensor, str], Any]

_NUMBERED = re.compile(r"(?P<name>[a-z]+)_(?P<index>\d+)")


def _plain(result: Any) -> Any:
    return tree_map(lambda part: part.tolist() if isinstance(part, torch.Tensor) else part, result)


def _parts(x: torch.Tensor, text: str) -> Any:
    found = _NUMBERED.match(text)
    if found is None:
        return x
    name, index = found.groups()
    return x + int(index), name, found["index"], found.groupdict(), found.span("name"), found.expand(r"\2 \1")


PROGRAMS: dict[str, Program] = {"parts": _parts}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("text", ["layer_12", "cab", "ab_3 x_4"])
def test_results_are_eager_s_in_one_graph(name: str, text: str) -> None:
    program, x = PROGRAMS[name], torch.randn(2)
    result = stator.compile(program, backend="eager", fullgraph=True)(x, text)
    assert _plain(result) == _plain(program(x, text))


def test_a_table_that_changes_is_looked_at_again() -> None:
    table = {97: "x"}
    compiled = stator.compile(lambda x, text: (x + 1, text.translate(table)), backend="eager", fullgraph=True)
    assert compiled(torch.ones(1), "abc")[1] == "xbc"
    table[98] = "y"
    assert compiled(torch.ones(1), "abc")[1] == "xyc"


def test_an_iterator_that_leaves_is_a_real_one() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, re.finditer("a", "banana")

    found, expected = stator.compile(program, backend="eager")(torch.ones(1))[1], program(torch.ones(1))[1]
    assert type(found) is type(expected) and [one.span() for one in found] == [one.span() for one in expected]


def test_a_match_from_outside_is_relied_on_by_what_it_found() -> None:
    def program(x: torch.Tensor, found: re.Match[str]) -> Any:
        return x + found.end(), found[0], found.lastgroup, found.string

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    x = torch.randn(2)
    counters.clear()
    for text in ("layer_1", "layer_1", "block_22", "layer_1", "block_22"):
        found = _NUMBERED.match(text)
        assert found is not None
        assert _plain(compiled(x, found)) == _plain(program(x, found))
    assert counters.counts["dynamo.compiled_frames"] == 2


def test_which_match_it_is_is_told_apart() -> None:
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
    with stator.assert_no_recompile():
        for _ in range(3):
            assert compiled(torch.ones(1), "layer_1")[1] == ("layer", "1")
