"""Functions that count the interpreter's objects and references run as they are, with what they call; others do not."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import pytest
import torch

import stator
from stator.base.errors import Unsupported
from stator.dynamo.host.introspection import observer_in


class Equal:
    def __eq__(self, other: object) -> bool:
        return False


def counts_objects(x: Any) -> int:
    one = Equal()
    before = len(gc.get_objects())
    for _ in range(3):
        one == one  # noqa: B015
    return len(gc.get_objects()) - before


def counts_a_constant(x: Any) -> int:
    items = (1, 2, 3)
    before = sys.getrefcount(items)
    torch.relu(x)
    stator.graph_break()
    return getrefcount(items) - before


def counts_in_a_comprehension(x: Any) -> list[int]:
    items = (4, 5, 6)
    return [sys.getrefcount(items) - sys.getrefcount(items) for _ in range(2)]


def imports_it(x: Any) -> int:
    from sys import getrefcount as count

    return count((7, 8)) - count((7, 8))


@pytest.mark.parametrize("function", [counts_objects, counts_a_constant, counts_in_a_comprehension, imports_it])
def test_what_is_counted_is_what_eager_counts(function):
    x = torch.ones(2)
    expected = function(x)
    compiled = stator.compile(function, backend="eager")
    assert [compiled(x) for _ in range(3)] == [expected] * 3


class Graphs:
    """A backend that notes the sizes of graphs."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.sizes.append(sum(node.op.startswith("call") for node in gm.graph.nodes))
        return gm.forward


def computes(x: Any) -> Any:
    return torch.relu(x) + 1


def test_what_an_observer_calls_is_not_compiled():
    def observes(x: Any) -> Any:
        return computes(x), sys.getrefcount(x) > 0

    graphs = Graphs()
    found, truth = stator.compile(observes, backend=graphs)(torch.ones(2))
    torch.testing.assert_close(found, torch.full((2,), 2.0))
    assert truth and graphs.sizes == []


def test_around_the_call_of_an_observer_everything_is_compiled():
    def program(x: Any) -> Any:
        y = computes(x)
        counted = counts_a_constant(x)
        return computes(y) + counted

    graphs = Graphs()
    found = stator.compile(program, backend=graphs)(torch.ones(2))
    torch.testing.assert_close(found, torch.full((2,), 3.0))
    assert len(graphs.sizes) == 2


def test_collecting_garbage_is_no_observation():
    def program(x: Any) -> Any:
        for _ in range(2):
            x = computes(x)
            gc.collect()
        return x

    graphs = Graphs()
    stator.compile(program, backend=graphs)(torch.ones(2))
    assert graphs.sizes


class Registry:
    def get_objects(self) -> list[int]:
        return [1, 2]


def test_a_method_of_the_program_with_such_a_name_is_none():
    registry = Registry()

    def program(x: Any) -> Any:
        return computes(x) * len(registry.get_objects())

    graphs = Graphs()
    torch.testing.assert_close(stator.compile(program, backend=graphs)(torch.ones(2)), torch.full((2,), 4.0))
    assert graphs.sizes == [3]
    assert observer_in(program.__code__, {}) is None


def test_fullgraph_says_what_it_met():
    with pytest.raises(Unsupported, match=r"gc\.get_objects") as caught:
        stator.compile(counts_objects, backend="eager", fullgraph=True)(torch.ones(2))
    assert caught.value.kind == "observer"
