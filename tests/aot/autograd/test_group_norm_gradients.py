"""Gradients of group norm where its input has none: ATen's kernel for channels-last memory would end the process."""

from __future__ import annotations

import pytest
import torch

import stator


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_of_weights_alone_in_channels_last_memory(backend: str) -> None:
    norm = torch.nn.GroupNorm(2, 4)
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    parameters = list(norm.parameters())
    expected = torch.autograd.grad(norm(x).sin().sum(), parameters)
    result = stator.compile(norm, backend=backend)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(torch.autograd.grad(result.sin().sum(), parameters), expected)


def test_of_weights_that_are_asked_for_alone() -> None:
    """Eager computes the input's gradient as well, since the program's input requires it."""
    norm = torch.nn.GroupNorm(2, 4)
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    x.requires_grad_()
    expected = torch.autograd.grad(norm(x).sin().sum(), [x, norm.weight])
    result = stator.compile(norm, backend="aot_eager")(x)
    torch.testing.assert_close(torch.autograd.grad(result.sin().sum(), norm.weight)[0], expected[1])
