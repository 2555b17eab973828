"""Modes and hooks around a compiled call or its backward are not for the operators that are traced inside of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import DOUBLE
from tests.scenarios import Scenario, check, may_break, scenarios
from torch.autograd.graph import saved_tensors_hooks

Tensor = torch.Tensor


def line() -> Tensor:
    return torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()


def several(x: Tensor) -> Any:
    return x.sin() * x, (x * 2).exp()


def a_backward_that_is_compiled_in_anomaly_mode(compiled):
    x = line()
    with torch.autograd.set_detect_anomaly(True):
        return torch.autograd.grad(compiled(several)(x)[0].sum(), x)


def hooks_of_saved_tensors_are_for_what_the_compiled_forward_saves(compiled):
    kinds: set[type] = set()

    def pack(tensor: Tensor) -> Tensor:
        kinds.add(type(tensor))
        return tensor.clone()

    x = line()
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compiled(several)(x)
    return torch.autograd.grad(result[0].sum(), x), kinds == {Tensor}


@may_break
def copies_of_saved_tensors_before_a_write(compiled):
    """Without the hooks, the backward would be an error."""

    def function(x: Tensor) -> Tensor:
        result = x.sin()
        x.mul_(2)
        return result

    x = line()
    with saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        result = compiled(function)(x * 1)
    return torch.autograd.grad(result.sum(), x)


def a_backward_with_random_numbers_that_is_compiled_for_batched_tangents(compiled):
    def function(x: Tensor) -> Any:
        return torch.nn.functional.dropout(x, 0.5) * x, x.exp()

    x, rows = line(), torch.eye(4, dtype=torch.float64)
    call = compiled(function, options={"exact_random": True})
    torch.manual_seed(0)
    return torch.autograd.grad(call(x)[0], x, rows, is_grads_batched=True)


@may_break
def second_derivatives_where_an_input_is_written_to(compiled):
    """By the old contents of the input, and by the leaves behind it."""

    def function(h: Tensor, running: Tensor, w: Tensor) -> Any:
        running.mul_(0.5).add_(w.detach().sum())
        product = h * w
        h.add_(w.exp())
        return product.sin() * running, h * h

    x, w = line(), torch.linspace(0.5, 2, 4, dtype=torch.float64).requires_grad_()
    h, running = x * 3, torch.ones(4, dtype=torch.float64)
    with saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        results = compiled(function)(h, running, w)
        first = torch.autograd.grad(sum(one.square().sum() for one in results), [x, w], create_graph=True)
        second = torch.autograd.grad(sum(one.sin().sum() for one in first), [x, w])
    return [one.detach() for one in first], second, running


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True, tolerance=DOUBLE)
