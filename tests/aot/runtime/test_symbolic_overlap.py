"""Graphs with symbolic sizes that write to inputs: overlapping inputs are found in each call, whatever their sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from symbolic_graphs import SymbolicGraph
from tests.scenarios import BACKENDS
from tests.varying_sizes import check_sizes

from stator import pipeline


def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(2)
    return x + y, y[1:]


def test_inputs_that_begin_to_overlap_give_eagers_results() -> None:
    graph = SymbolicGraph(program, [torch.randn(4, 3), torch.randn(4, 3)])
    compiled = pipeline.aot_eager_backend(graph.module, [torch.randn(4, 3), torch.randn(4, 3)])
    for rows in (4, 6, 9, 6):
        for shift in (0, 1, rows - 1, rows):  # the last does not overlap
            memory, expected = torch.randn(2 * rows, 3), torch.empty(2 * rows, 3)
            expected.copy_(memory)
            found = compiled(memory[:rows], memory[shift : shift + rows])
            for own, other in zip(found, program(expected[:rows], expected[shift : shift + rows]), strict=True):
                torch.testing.assert_close(own, other)
            torch.testing.assert_close(memory, expected)


def test_inputs_that_overlap_from_the_first_call_on() -> None:
    memory = torch.randn(8, 3)
    graph = SymbolicGraph(program, [memory[:4], memory[1:5]])
    compiled = pipeline.aot_eager_backend(graph.module, [memory[:4], memory[1:5]])
    for rows in (4, 6, 9, 5, 7, 8):
        memory, expected = torch.randn(2 * rows, 3), torch.empty(2 * rows, 3)
        expected.copy_(memory)
        found = compiled(memory[:rows], memory[1 : 1 + rows])
        for own, other in zip(found, program(expected[:rows], expected[1 : 1 + rows]), strict=True):
            torch.testing.assert_close(own, other)
        torch.testing.assert_close(memory, expected)


def halves(base, view):
    view.add_(1)
    return base * 2, view.sum(), base


def columns(base, view):
    base.mul_(base.shape[0])
    view.t().add_(1)
    return base + 1, view, view[1:]


def of_other_sizes(base, view):
    view.add_(base.shape[0])
    return torch.arange(len(view)) + view.reshape(len(view), -1).sum(1), base.view(-1)[: len(view)]


@pytest.mark.each_pair
@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "view",
    [
        lambda base: base,
        lambda base: base.view(-1, 4),
        lambda base: base[2:],
        lambda base: base[:, 2:6],
        lambda base: base.t(),
        lambda base: base[: base.shape[0] - 1],
        lambda base: base[1:3],
    ],
)
@pytest.mark.parametrize("program", [halves, columns, of_other_sizes])
def test_a_tensor_beside_its_view_needs_two_versions(program: Any, view: Any, backend: str, dynamic: Any) -> None:
    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.randn(size, 8)
        return base, view(base)

    check_sizes(program, make, backend=backend, dynamic=dynamic)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_of_memory_that_is_no_input(backend: str) -> None:
    def make(size: int) -> list[torch.Tensor]:
        memory = torch.randn(2 * size, 3)
        return [memory[:size], memory[1 : 1 + size]]

    def program(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        first.mul_(first.shape[0])
        return (first + second).detach()

    check_sizes(program, make, backend=backend)
    check_sizes(program, lambda size: [one.detach() for one in make(size)], backend=backend)  # no view of the other
