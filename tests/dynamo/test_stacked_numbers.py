"""Tensors of one number in lists, as `torch.tensor([a, b])` and indices take them, are captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.tensor([[1.0, -1.0], [2.0, 3.0]])


def set_by_pairs(x: torch.Tensor) -> Any:
    rows, columns = zip(*(x > 0).long(), strict=True)
    y = x.clone()
    y[rows, columns] = 7.0
    return y, x[rows, columns]


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensors and numbers": lambda x: torch.tensor([x.sum(), 2, x[0, 0] * 3]) + x.sum(),
    "lists of lists": lambda x: torch.tensor([[x[0, 0], x[1, 0]], (x[0, 1], 1.5)]) + x,
    "a wider dtype": lambda x: torch.tensor([x.long()[0, 0], 3], dtype=torch.float32) + x,
    "dtypes together": lambda x: torch.tensor([x[0, 0].double(), x.long()[0, 1], True]),
    "truths": lambda x: torch.tensor([x.sum() > 0, True]) & (x > 0),
    "an index of pairs": set_by_pairs,
    "an index of short integers": lambda x: x[[(x > 0)[0].to(torch.int16)[0], 1], :],
    "an index of lists": lambda x: x[([x[0, 0].long() % 2], [0])],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_stacked(name: str) -> None:
    program = PROGRAMS[name]
    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)


def test_the_copy_has_no_gradient() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([x.sum(), x[0, 0]]) * x

    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    program(x).sum().backward()
    stator.compile(program, backend="aot_eager", fullgraph=True)(y).sum().backward()
    assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)


def test_numbers_that_may_not_fit_are_read() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([x.long()[0, 0], 3], dtype=torch.int8) + x

    compiled = stator.compile(program, backend="eager")
    assert torch.equal(compiled(X), program(X))
    with pytest.raises(RuntimeError, match="overflow"):
        compiled(X * 300)


PREFIXES = ("a_", "b_")


def test_tuples_from_outside_are_arguments_of_methods_of_text() -> None:
    def program(x: torch.Tensor, name: str) -> torch.Tensor:
        return x + 1 if name.startswith(PREFIXES) else x - 1

    global PREFIXES
    before, compiled = PREFIXES, stator.compile(program, backend="eager", fullgraph=True)
    try:
        assert torch.equal(compiled(X, "a_b"), X + 1)
        PREFIXES = ("c_",)
        assert torch.equal(compiled(X, "a_b"), X - 1)
    finally:
        PREFIXES = before


def test_lists_of_tensors_behind_a_break_are_arguments_of_operators() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        found = [x, x + 1]
        stator.graph_break()
        return torch.cat(found)

    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    assert torch.equal(stator.compile(program, backend=backend)(X), program(X))
    assert len(graphs) == 2
