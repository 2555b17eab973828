"""Versions of inputs that a compiled program has written to are eager's: each write counts, none through `.data`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import EXACT, ROUNDED
from tests.scenarios import check
from torch.nn import functional

import stator

Tensor = torch.Tensor


def _without_gradients(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        x.add_(1)


def _behind_a_break(x: Tensor, y: Tensor) -> Any:
    data = x.data
    stator.graph_break()
    data.mul_(2)


def _a_part_behind_a_break(x: Tensor, y: Tensor) -> Any:
    data = x.data[1:]
    stator.graph_break()
    data.mul_(2)


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "one": lambda x, y: x.add_(1),
    "three": lambda x, y: x.add_(1).mul_(2).sub_(1),
    "items": lambda x, y: [x.__setitem__(0, 1.0), x.__setitem__(1, x[0])],
    "views": lambda x, y: [row.add_(1) for row in x.unbind()],
    "of nothing": lambda x, y: x[:0].add_(1),
    "taken back": lambda x, y: x.add_(1).sub_(1),
    "out": lambda x, y: torch.add(torch.mul(x, 2, out=x), 1, out=x),
    "detached": lambda x, y: x.detach().mul_(2).add_(1),
    "data": lambda x, y: x.data.add_(1),
    "a part of data": lambda x, y: x.data[1:].fill_(3),
    "data of a view": lambda x, y: x.view(9).data.mul_(2),
    "data from a result": lambda x, y: x.data.copy_(y.detach()),
    "data and itself": lambda x, y: [x.data.add_(1), x.mul_(2), x.mul_(3)],
    "foreach": lambda x, y: torch._foreach_add_([x, x], 1.0),
    "statistics": lambda x, y: functional.batch_norm(torch.ones(2, 3), x[0], x[1], training=True),
    "without gradients": _without_gradients,
    "data behind a break": _behind_a_break,
    "a part of data behind a break": _a_part_behind_a_break,
}
REFUSED = ("views", "out", "statistics")  # by eager, of inputs that require grad


@pytest.mark.each_pair
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("needs_grad", ["nothing", "another", "itself"])
@pytest.mark.parametrize("name", WRITES)
def test_versions_of_inputs(name: str, needs_grad: str, backend: str) -> None:
    if needs_grad == "itself" and name in REFUSED:
        pytest.skip("refused by eager")

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x * 2
        WRITES[name](x, y)
        return y * w

    def scenario(compiled: Any) -> Any:
        x = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
        x = x.requires_grad_() * 1 if needs_grad == "itself" else x
        compiled(program)(x, torch.ones(3, 3, requires_grad=needs_grad == "another"))
        return x._version, x.detach()

    check(scenario, backend, tolerance=EXACT)


def test_versions_read_by_the_program() -> None:
    def program(x: Tensor) -> tuple[int, int]:
        before = x._version
        x.add_(1)
        x.mul_(2)
        return before, x._version

    assert stator.compile(program)(torch.ones(3)) == program(torch.ones(3))


def test_statistics_may_change_between_forward_and_backward() -> None:
    norm = torch.nn.BatchNorm1d(3)
    x = torch.ones(2, 3, requires_grad=True)
    y = norm.eval()(x)  # saves the running statistics
    stator.compile(norm.train())(torch.rand(4, 3))
    y.sum().backward()
    assert x.grad is not None


class Placed(torch.autograd.Function):
    """Writes into memory that earlier results are views of, as integrators of differential equations do."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, value: Tensor, place: int) -> Tensor:
        ctx.place = place
        memory.data[..., place] = value
        return memory

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Any:
        return tangent, tangent[..., ctx.place], None


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("breaks", [0, 1, 2, 4, 7])
def test_a_function_that_writes_where_results_lie_is_differentiated(breaks: int, backend: str) -> None:
    def stages(x: Tensor) -> Tensor:
        memory = torch.empty(4, 3)
        memory = Placed.apply(memory, x, 0)
        if breaks & 1:
            stator.graph_break()
        second = (memory[..., :1] * 2).sum(-1)
        memory = Placed.apply(memory, second, 1)
        if breaks & 2:
            stator.graph_break()
        third = (memory[..., :2] * 3).sum(-1)
        if breaks & 4:
            stator.graph_break()
        return Placed.apply(memory, third, 2).pow(2).sum(-1)

    def scenario(compiled: Any) -> Any:
        x = torch.linspace(-1, 1, 4).requires_grad_()
        # eager's gradient by the first column is a view of the gradient by the memory
        return torch.autograd.grad(compiled(stages)(x).sum(), x)[0].contiguous()

    check(scenario, backend, tolerance=ROUNDED)
