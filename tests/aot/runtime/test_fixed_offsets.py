"""Memory addressed by as_strided, from the beginning of an input's storage."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import stator

x_of = torch.arange(12.0).reshape


def overlapping_rows(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((3, 4), (2, 1), 1) * 2


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.as_strided((2, 2), (5, 1), 2).add_(1)
    return y + x.view(-1)[2:].as_strided((4, 3), (3, 1), 0)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("function", [overlapping_rows, written])
@pytest.mark.parametrize("training", [False, True])
def test_inputs_are_read_from_their_beginning(backend: str, function: Callable, training: bool) -> None:
    compiled = stator.compile(function, backend=backend, fullgraph=True)
    results = []
    for one in (compiled, function):
        x = x_of(4, 3).clone().requires_grad_(training)
        result = one(x)
        gradient = torch.autograd.grad((result * torch.arange(12.0).reshape(result.shape)).sum(), x) if training else ()
        results.append((result.detach(), *gradient))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_memory_between_the_elements_of_an_input_is_not_captured() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((6,), (1,)) + 1

    x = torch.arange(12.0)[::2]
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        assert stator.compile(function, backend="aot_eager")(x).tolist() == [1, 2, 3, 4, 5, 6]
