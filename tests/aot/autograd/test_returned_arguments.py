"""Custom functions that write into their argument behind autograd's back and return it: the result has the argument's
memory, and a place of its own in autograd's graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unrecorded_writes import Assign

import stator

Results = tuple[torch.Tensor, ...]


def stages(x: torch.Tensor) -> torch.Tensor:
    buffer = Assign.apply(torch.empty(4, 3), x * 2, (..., 0))
    buffer = Assign.apply(buffer, buffer[:, 0].tanh(), (..., 1))
    return Assign.apply(buffer, x * x, (..., 2))  # type: ignore[no-any-return]


def whole_and_column(x: torch.Tensor) -> Results:
    made = stages(x)
    return made, made[..., -1], made.sum()


def column_first(x: torch.Tensor) -> Results:
    made = stages(x)
    return made[..., 1], made.t(), made


def without_the_whole(x: torch.Tensor) -> Results:
    made = stages(x)
    return made[..., 0], made[1:], made.exp()


@pytest.mark.parametrize("program", [whole_and_column, column_first, without_the_whole])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_results_share_memory_and_have_eagers_gradients(program: Callable[..., Results], backend: str) -> None:
    x = torch.randn(4, generator=torch.Generator().manual_seed(0))
    gradients = []
    expected: Results = ()
    for function in (program, stator.compile(program, backend=backend)):
        leaf = x.clone().requires_grad_()
        results = function(leaf)
        sum(((at + 1) * result * result).sum() for at, result in enumerate(results)).backward()  # type: ignore[union-attr]
        gradients.append(leaf.grad)
        expected = expected or results
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(*gradients)
    for two in (results, expected):
        assert two[0].untyped_storage().data_ptr() == two[1].untyped_storage().data_ptr()
    assert [one._is_view() for one in results[:2]].count(False) <= 1


@pytest.mark.parametrize("program", [whole_and_column, column_first, without_the_whole])
def test_one_graph_serves(program: Callable[..., Results]) -> None:
    stator.compile(program, fullgraph=True)(torch.ones(4, requires_grad=True))
