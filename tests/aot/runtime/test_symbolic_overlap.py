"""Graphs with symbolic sizes that write to inputs: overlapping inputs are found in each call, whatever their sizes."""

from __future__ import annotations

import pytest
import torch
from symbolic_graphs import SymbolicGraph

from stator import pipeline
from stator.base.errors import Unsupported


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


def test_inputs_that_overlap_from_the_first_call_on_have_fixed_sizes() -> None:
    memory = torch.randn(8, 3)
    graph = SymbolicGraph(program, [memory[:4], memory[2:6]])
    with pytest.raises(Unsupported, match="fixed sizes") as raised:
        pipeline.aot_eager_backend(graph.module, [memory[:4], memory[2:6]])
    assert raised.value.kind == "dynamic-shape"
