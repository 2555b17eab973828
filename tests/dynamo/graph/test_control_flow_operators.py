"""torch.cond and its like: one graph where Python decides; elsewhere the results, gradients and errors of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import stator


def by_number(x: torch.Tensor, flag: Any) -> torch.Tensor:
    return torch.cond(flag, lambda a, b: a.sin() + b, lambda a, b: a.cos() - b, (x * 2, x)) + 1


def by_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.shape[0] > 2, lambda a: a.sum(), lambda a: a.prod(), [x])


def without_operands(x: torch.Tensor, flag: bool) -> torch.Tensor:
    return torch.cond(flag, lambda: x + 1, lambda: x - 1)


def by_tensor(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    return torch.cond(y.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos() - 1, (y,)) + 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("flag", [True, False, 1, 0, 0.5])
def test_a_python_condition_is_followed_in_one_graph(flag: Any, backend: str) -> None:
    x = torch.randn(4, generator=torch.Generator().manual_seed(0))
    compiled = stator.compile(by_number, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x, flag), by_number(x, flag))
    torch.testing.assert_close(compiled(x, not flag), by_number(x, not flag))


def test_shapes_decide_and_closures_are_read() -> None:
    compiled = stator.compile(by_shape, backend="eager", fullgraph=True)
    for size in (1, 2, 3, 4):
        x = torch.randn(size, generator=torch.Generator().manual_seed(size))
        torch.testing.assert_close(compiled(x), by_shape(x))
    closed = stator.compile(without_operands, backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    for flag in (True, False):
        assert torch.equal(closed(x, flag), without_operands(x, flag))


def test_gradients_flow_through_the_branch_that_was_taken() -> None:
    compiled = stator.compile(by_number, backend="inductor", fullgraph=True)
    for flag in (True, False):
        x = torch.linspace(-1, 1, 5).requires_grad_()
        y = x.detach().clone().requires_grad_()
        compiled(x, flag).sum().backward()
        by_number(y, flag).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def looped(x: torch.Tensor) -> Any:
    return while_loop(lambda at, y: at < 3, lambda at, y: (at + 1, y * 2), (torch.tensor(0), x + 1))[1] - 1


def scanned(x: torch.Tensor) -> Any:
    return scan(lambda carry, y: (carry + y, carry * y), torch.zeros(2), x * 2)[1] + 1


def mapped(x: torch.Tensor) -> Any:
    return torch_map(lambda row, other: row.sin() + other, x * 2, x[0]) + 1


def accumulated(x: torch.Tensor) -> Any:
    return associative_scan(lambda a, b: a + b, x * 2, 0, combine_mode="generic") + 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", [by_tensor, looped])
def test_operators_in_one_graph_give_what_plain_torch_gives(program: Any, backend: str) -> None:
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for sign in (1.0, -1.0):
        x = torch.arange(6.0).reshape(3, 2) * sign
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.slow
@pytest.mark.parametrize("program", [scanned, mapped, accumulated])
def test_other_loops_run_as_in_plain_torch_between_two_graphs(program: Any) -> None:
    compiled = stator.compile(program, backend="aot_eager")
    for sign in (1.0, -1.0):
        x = torch.arange(6.0).reshape(3, 2) * sign
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.slow
def test_gradients_through_a_branch_are_those_of_plain_torch() -> None:
    compiled = stator.compile(by_tensor, backend="inductor", fullgraph=True)
    x = torch.linspace(-1, 1, 6).reshape(3, 2).requires_grad_()
    y = x.detach().clone().requires_grad_()
    compiled(x).sum().backward()
    by_tensor(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
