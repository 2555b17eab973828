"""What a program writes through `.data` raises no version, in compiled code as in eager: autograd is not told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Program = Callable[[torch.Tensor, torch.Tensor], Any]


def all_of_it(x: torch.Tensor, kept: torch.Tensor) -> Any:
    kept.data.mul_(2)
    return x * 2


def a_part(x: torch.Tensor, kept: torch.Tensor) -> Any:
    kept.data[1:] = 3
    return x * 2


def through_a_view(x: torch.Tensor, kept: torch.Tensor) -> Any:
    kept.view(2, 2).data.mul_(2)
    return x * 2


def from_a_result(x: torch.Tensor, kept: torch.Tensor) -> Any:
    kept.data.copy_((x * 3)[0].detach())
    return x * 2


def behind_a_break(x: torch.Tensor, kept: torch.Tensor) -> Any:
    data = kept.data
    stator.graph_break()
    data.mul_(2)
    return x * 2


def a_part_behind_a_break(x: torch.Tensor, kept: torch.Tensor) -> Any:
    data = kept.data[1:]
    stator.graph_break()
    data.mul_(2)
    return x * 2


def both_ways(x: torch.Tensor, kept: torch.Tensor) -> Any:
    kept.data.mul_(2)
    kept.add_(1)
    return x * 2


def through_detach(x: torch.Tensor, kept: torch.Tensor) -> Any:
    kept.detach().mul_(2)
    return x * 2


def without_gradients(x: torch.Tensor, kept: torch.Tensor) -> Any:
    with torch.no_grad():
        kept.add_(1)
    return x * 2


PROGRAMS: list[Program] = [
    all_of_it, a_part, through_a_view, from_a_result, behind_a_break, a_part_behind_a_break, both_ways, through_detach,
    without_gradients,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_versions_rise_as_in_eager(program: Program, requires_grad: bool, backend: str) -> None:
    def told(function: Program) -> tuple[bool, list[float]]:
        kept = torch.arange(4.0)
        function(torch.ones(3, 4, requires_grad=requires_grad), kept)
        return kept._version > 0, kept.tolist()

    assert told(stator.compile(program, backend=backend)) == told(program)


class Placed(torch.autograd.Function):
    """Writes into memory that earlier results are views of, as integrators of differential equations do."""

    @staticmethod
    def forward(ctx: Any, memory: torch.Tensor, value: torch.Tensor, place: int) -> torch.Tensor:
        ctx.place = place
        memory.data[..., place] = value
        return memory

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        return tangent, tangent[..., ctx.place], None


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("breaks", [0, 1, 2, 4, 7])
def test_a_function_that_writes_where_results_lie_is_differentiated(breaks: int, backend: str) -> None:
    def stages(x: torch.Tensor) -> torch.Tensor:
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

    def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.linspace(-1, 1, 4).requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    torch.testing.assert_close(gradient(stator.compile(stages, backend=backend)), gradient(stages))
