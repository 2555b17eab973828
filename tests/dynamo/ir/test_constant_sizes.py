"""Features that cannot do with symbols make constants of the sizes that they need, and of no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.scenarios import BACKENDS
from tests.varying_sizes import check_sizes
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor

import stator
from stator.base.errors import ConstraintViolation


def replaced_data(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    own = torch.zeros(3)
    own.data = x * 2
    return own, y * y.shape[0]


def arrays(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(x.numpy() * 2), y * y.shape[0]


def beside_a_pair(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (TwoTensor(x, x + 1) * 2).a, y * y.shape[0]


@pytest.mark.parametrize("program", [replaced_data, arrays, beside_a_pair])
def test_sizes_that_a_feature_needs_are_constants_and_others_stay_symbols(program: Callable[..., Any]) -> None:
    made: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    compiled = stator.compile(program, backend=backend, fullgraph=True, dynamic=True)
    counts = []
    for rows, others in ((4, 5), (4, 7), (4, 3), (6, 3)):
        x, y = torch.randn(rows), torch.randn(others, 2)
        torch.testing.assert_close(compiled(x, y), program(x, y), rtol=0, atol=0)
        counts.append(len(made))
    assert counts == [1, 1, 1, 2]


def test_explain_names_the_line_that_needs_a_constant() -> None:
    found = str(stator.explain(arrays, dynamic=True)(torch.randn(4), torch.randn(5)))
    place = f"line {arrays.__code__.co_firstlineno + 1}"
    (line,) = (one for one in found.splitlines() if "x.size(0) == 4" in one)
    assert place in line and "for many values of y.size(0)" in found


def test_a_promise_about_such_a_size_is_broken() -> None:
    x = torch.randn(4)
    stator.mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolation, match=r"x\.size\(0\) has to be 4"):
        stator.compile(arrays, backend="eager")(x, torch.randn(5))


def test_a_frame_that_is_one_graph_only_with_constants_has_constants_under_fullgraph() -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.div(x.size(0), 3, rounding_mode="trunc"), 3, -1) + 1

    compiled = stator.compile(rows, backend="eager", fullgraph=True, dynamic=True)
    for size in (6, 9, 3):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x), rows(x), rtol=0, atol=0)


def test_branches_on_masks_of_any_size_are_guarded() -> None:
    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + 1 if mask.all() else x * mask

    compiled = stator.compile(masked, backend="eager", fullgraph=True, dynamic=True)
    for size in (5, 7, 9, 7):
        x, mask = torch.randn(size), torch.ones(size, dtype=torch.long)
        for hole in (0, 1):
            mask[-1] = 1 - hole
            torch.testing.assert_close(compiled(x, mask), masked(x, mask), rtol=0, atol=0)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_beside_tensors_made_of_tensors_stay_symbols(backend: str) -> None:
    def program(pair: TwoTensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return pair.sin() * 2, y * y.shape[0]

    def make(size: int) -> list[torch.Tensor]:
        return [TwoTensor(torch.randn(3, 2), torch.randn(3, 2)).requires_grad_(), torch.randn(size, requires_grad=True)]

    check_sizes(program, make, backend=backend)
