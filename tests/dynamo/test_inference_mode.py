"""Frames that run under torch.inference_mode, with normal and with inference tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "views": lambda x: x.view(-1)[1:].unsqueeze(0) * 2,
    "writes": lambda x: x.add_(1).t().mul_(2),
    "write through a view": lambda x: x[0].fill_(3).sum() + x.sum(),
    "new tensors": lambda x: torch.tensor([1.0, 2.0]).sum() + x.sum(),
    "mode is seen": lambda x: x + (1 if torch.is_inference_mode_enabled() else 2),
    "gradients are off": lambda x: x + (1 if torch.is_grad_enabled() else 2),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("inference_input", [False, True])
def test_equal_to_eager(program: str, inference_input: bool, backend: str) -> None:
    function = PROGRAMS[program]
    compiled = stator.compile(lambda x: function(x), fullgraph=True, backend=backend)
    with torch.inference_mode(inference_input):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        y = x.clone()
    with torch.inference_mode():
        actual, expected = compiled(x), function(y)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(x, y)
        assert actual.is_inference() == expected.is_inference()


def test_leaving_inference_mode_compiles_anew() -> None:
    linear = torch.nn.Linear(3, 3)
    compiled = stator.compile(linear)
    x = torch.randn(2, 3)
    with torch.inference_mode():
        assert not compiled(x).requires_grad
    compiled(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(3, 3))
