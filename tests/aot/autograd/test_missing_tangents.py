"""Functions with a backward of their own that compute something else where a result has no gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator


class ProductAndDifference(torch.autograd.Function):
    """Reads `x` in the backward for the difference alone, and for `y`, which may not need it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x - y

    @staticmethod
    def backward(ctx: Any, product: torch.Tensor | None, difference: torch.Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        if product is None:
            return difference * x + torch.zeros_like(y), None
        return product * y if difference is None else product * y + difference, None


class ExponentialOnlyAlone(torch.autograd.Function):
    """Makes a value in the forward that only the backward for the second result alone needs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x.exp())
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: torch.Tensor | None, second: torch.Tensor | None) -> Any:
        (exponential,) = ctx.saved_tensors
        return second * exponential if first is None else first * 2


def gradients(function: Any) -> list[torch.Tensor]:
    """For the second result, the first, and both."""
    found = []
    for used in ((1,), (0,), (0, 1)):
        x = torch.linspace(-1, 1, 5, requires_grad=True)
        results = function(x.sin())
        sum((results[at] * (at + 2)).sum() for at in used).backward()
        found.append(x.grad)
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_the_backward_for_one_result_alone_needs_is_saved(backend: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ProductAndDifference.apply(x, x.detach() + 2)

    torch.testing.assert_close(gradients(stator.compile(program, backend=backend)), gradients(program))


@pytest.mark.filterwarnings("ignore:stator")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_where_the_graph_does_not_have_it_the_frame_runs_eagerly(backend: str) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ExponentialOnlyAlone.apply(x)

    torch.testing.assert_close(gradients(stator.compile(program, backend=backend)), gradients(program))
