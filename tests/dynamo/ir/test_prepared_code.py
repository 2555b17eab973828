"""Facts about code that decide which variables a break hands over."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.dynamo.ir.prepared_code import reads_no_frame


def stacks(x: Any) -> Any:
    return torch.stack([x, x])


def switches(model: Any) -> Any:
    return model.eval()


def asks_for_frames() -> Any:
    return inspect.stack()


def imports_the_function() -> Any:
    from inspect import stack

    return stack()


def asks_for_variables() -> Any:
    return locals()


def evaluates() -> Any:
    return eval("1")


@pytest.mark.parametrize("function", [stacks, switches])
def test_a_method_of_like_name_reads_no_variables(function: Callable[..., Any]) -> None:
    assert reads_no_frame(function.__code__)


@pytest.mark.parametrize("function", [asks_for_frames, imports_the_function, asks_for_variables, evaluates])
def test_functions_that_read_variables_are_known(function: Callable[..., Any]) -> None:
    assert not reads_no_frame(function.__code__)


def test_a_break_hands_over_live_variables_alone() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        first = x * 2
        second = first + 1
        torch._dynamo.graph_break()
        return torch.stack([second, second])

    results: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        results.append(len(gm.graph.output_node().args[0]))
        return gm.forward

    x = torch.randn(3)
    assert torch.equal(stator.compile(program, backend=backend)(x), program(x))
    assert results == [1, 1]
