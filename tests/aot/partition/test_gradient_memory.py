"""Gradients have memory of their own: autograd adds later ones to them in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator
from stator.aot.runtime.gradient_memory import aliasing_gradients

Function = Callable[..., torch.Tensor]
PROGRAMS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "a view and the same": (lambda x, y: x.view(5, 7) + y, (35,), (5, 7)),
    "one more dimension": (lambda x, y: x.unsqueeze(0) + y, (5,), (1, 5)),
    "two views": (lambda x, y: x.view(5, 7) + y.view(5, 7), (35,), (35,)),
    "two ways to be transposed": (lambda x, y: x.t() + y.permute(1, 0), (4, 6), (4, 6)),
    "parts": (lambda x, y: torch.cat([x, y]), (3,), (4,)),
    "parts that overlap": (lambda x, y: x.expand(2, 3).sum(0) + y[:3] + y[2:], (3,), (5,)),
    "the same": (lambda x, y: x + y, (5,), (5,)),
}


def _random(size: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_added_up_each_in_its_place(program: str, backend: str) -> None:
    function, *sizes = PROGRAMS[program]
    compiled = stator.compile(function, backend=backend, fullgraph=True)
    inputs = [_random(size, seed) for seed, size in enumerate(sizes)]
    expected = torch.autograd.grad(function(*inputs).square().sum(), inputs)
    for times in range(1, 4):
        compiled(*inputs).square().sum().backward()
        for tensor, once in zip(inputs, expected, strict=True):
            torch.testing.assert_close(tensor.grad, times * once)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("behind", [None, torch.ones(7, 5).t()], ids=["alone", "behind a tangent of another layout"])
def test_a_tangent_of_the_caller_stays_unchanged(behind: torch.Tensor | None, backend: str) -> None:
    compiled = stator.compile(lambda x: x.view(5, 7) + 1, backend=backend, fullgraph=True)
    x, tangent = _random((35,), 0), torch.ones(5, 7)
    if behind is not None:
        compiled(x).backward(behind)
        x.grad = None
    for _ in range(3):
        compiled(x).backward(tangent)
    assert torch.equal(tangent, torch.ones(5, 7))
    assert torch.equal(x.grad, torch.full((35,), 3.0))


def test_what_shares_memory_is_found() -> None:
    memory = torch.zeros(20)
    whole, left, middle, right, empty = memory[:], memory[:10], memory[5:15], memory[10:], memory[:0]
    other = torch.zeros(3)
    assert aliasing_gradients([left, right, other, empty], range(4), []) == []
    assert aliasing_gradients([left, middle, right], range(3), []) == [1]
    assert aliasing_gradients([left, left, other], range(3), []) == []
    assert aliasing_gradients([left, other], range(2), [whole]) == [0]
    assert aliasing_gradients([whole, left], range(2), [left]) == [0]
    assert aliasing_gradients([whole, other], [0, None, 1], [whole]) == []
    assert aliasing_gradients([whole, whole.view(4, 5)], range(2), [whole]) == [1]
