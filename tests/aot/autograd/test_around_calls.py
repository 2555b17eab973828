"""Around a compiled call or its backward: anomaly mode and hooks of saved tensors are not for what is traced there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

BACKENDS = ["aot_eager", "inductor"]


def _same(function: Callable[..., Any], look: Callable[[Callable[..., Any]], Any], backend: str) -> None:
    compiled = stator.compile(function, backend=backend, fullgraph=True)
    torch.testing.assert_close(look(compiled), look(function), rtol=1e-9, atol=1e-9)


def _several(x: torch.Tensor) -> Any:
    return x.sin() * x, (x * 2).exp()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_that_is_compiled_in_anomaly_mode(backend: str) -> None:
    def look(call: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        with torch.autograd.set_detect_anomaly(True):
            return torch.autograd.grad(call(x)[0].sum(), x)

    _same(_several, look, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_saved_tensors_are_for_what_the_compiled_forward_saves(backend: str) -> None:
    kinds: list[type] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kinds.append(type(tensor))
        return tensor.clone()

    def look(call: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = call(x)
        return torch.autograd.grad(result[0].sum(), x)

    _same(_several, look, backend)
    assert set(kinds) == {torch.Tensor}


@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_of_saved_tensors_before_a_write(backend: str) -> None:
    """What would be an error without the hooks."""

    def function(x: torch.Tensor) -> torch.Tensor:
        result = x.sin()
        x.mul_(2)
        return result

    def look(call: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
            result = call(x * 1)
        return torch.autograd.grad(result.sum(), x)

    torch.testing.assert_close(look(stator.compile(function, backend=backend)), look(function))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_with_random_numbers_that_is_compiled_for_batched_tangents(backend: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.nn.functional.dropout(x, 0.5) * x, x.exp()

    def look(call: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        torch.manual_seed(0)
        rows = torch.eye(4, dtype=torch.float64)
        return torch.autograd.grad(call(x)[0], x, rows, is_grads_batched=True)

    compiled = stator.compile(function, backend=backend, options={"exact_random": True})
    torch.testing.assert_close(look(compiled), look(function))


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_where_an_input_is_written_to(backend: str) -> None:
    """By what it was before, and by what is behind it."""

    def function(h: torch.Tensor, running: torch.Tensor, w: torch.Tensor) -> Any:
        running.mul_(0.5).add_(w.detach().sum())
        product = h * w
        h.add_(w.exp())
        return product.sin() * running, h * h

    def look(call: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        w = torch.linspace(0.5, 2, 4, dtype=torch.float64).requires_grad_()
        h, running = x * 3, torch.ones(4, dtype=torch.float64)
        results = call(h, running, w)
        first = torch.autograd.grad(sum(one.square().sum() for one in results), [x, w], create_graph=True)
        second = torch.autograd.grad(sum(one.sin().sum() for one in first), [x, w])
        return [*first, *second, running]

    def program(h: torch.Tensor, running: torch.Tensor, w: torch.Tensor) -> Any:
        return function(h, running, w)

    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        wanted = look(function)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        found = look(stator.compile(program, backend=backend))
    torch.testing.assert_close(found, wanted)
