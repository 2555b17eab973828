"""Backward calls one after the other without retain_graph raise where eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import ROUNDED
from tests.scenarios import check

import stator

BACKENDS = ["aot_eager", "inductor"]
Tensor = torch.Tensor


def _apart(x: Tensor, y: Tensor) -> Any:
    return (x * x).sum(), (y.sin() * y).sum(), (x * 2).sum()


def _from_one_trunk(x: Tensor, y: Tensor) -> Any:
    trunk = x.tanh()
    return trunk.sum(), (trunk * 2).sum(), (x + y).sum()


def _from_a_trunk_that_saves_nothing(x: Tensor, y: Tensor) -> Any:
    trunk = x + y
    return trunk.sum(), (trunk * 2).sum(), (trunk * trunk).sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [_apart, _from_one_trunk, _from_a_trunk_that_saves_nothing])
def test_as_in_eager(function: Callable[..., Any], backend: str) -> None:
    def one_after_the_other(compiled: Any) -> list[Any]:
        x, y = (torch.linspace(-1, 1, 4).add(shift).requires_grad_() for shift in (0, 3))
        seen: list[Any] = []
        results = compiled(function)(x, y)
        for result in (*results, results[0]):
            try:
                result.backward()
            except RuntimeError as error:
                seen.append(str(error).partition("(")[0])
            seen += [None if tensor.grad is None else tensor.grad.clone() for tensor in (x, y)]
        return seen

    check(one_after_the_other, backend, whole=True, tolerance=ROUNDED)


def test_a_write_in_between_is_noticed() -> None:
    x, y = (torch.ones(3, requires_grad=True) * 1 for _ in range(2))
    first, second, _ = stator.compile(_apart, backend="aot_eager")(x, y)
    first.backward()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()


@pytest.mark.parametrize("function", [lambda x: (x * 2).sum(), lambda x: (x + 1).sum(), lambda x: x.mean()])
def test_a_second_backward_through_what_saves_no_tensor(function: Callable[..., Any]) -> None:
    def twice(compiled: Any) -> Any:
        x = torch.ones(3, requires_grad=True)
        result = compiled(function)(x)
        result.backward()
        try:
            result.backward()
        except RuntimeError:
            return True, x.grad
        return False, x.grad

    check(twice, "aot_eager", tolerance=ROUNDED)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_beside_an_input_that_needs_no_gradient(order: tuple[int, int], backend: str) -> None:
    def one_after_the_other(compiled: Any) -> Any:
        x = torch.linspace(0, 1, 5, requires_grad=True)
        results = compiled(lambda x, target: ((x * target).sum(), (x - target).sin().sum()))(x, torch.ones(5))
        for at in order:
            results[at].backward()
        return x.grad

    check(one_after_the_other, backend, tolerance=ROUNDED)


def test_of_an_input_that_is_given_twice_and_written_to() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return (x * 3).sum(), (y.cos() * x).sum()

    def one_after_the_other(compiled: Any) -> Any:
        x = torch.linspace(0, 1, 5, requires_grad=True)
        copy = x * 1
        results = compiled(program)(copy, copy)
        results[0].backward(retain_graph=True)
        results[1].backward()
        return x.grad

    check(one_after_the_other, "aot_eager", tolerance=ROUNDED)
