"""A backward that writes to a tensor of the program is not compiled: the program runs eagerly."""

from __future__ import annotations

import pytest
import torch

import stator


@torch.library.custom_op("stator_tests::with_counter", mutates_args={})
def with_counter(x: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    return x * 3


@torch.library.custom_op("stator_tests::doubling", mutates_args={})
def doubling(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def _keep_counter(ctx, inputs, output) -> None:
    ctx.counter = inputs[1]


def _count(ctx, gradient):
    ctx.counter.add_(1)
    return gradient * 3, None


def _double_in_place(ctx, gradient):
    return gradient.mul_(2)


with_counter.register_fake(lambda x, counter: torch.empty_like(x))
with_counter.register_autograd(_count, setup_context=_keep_counter)
doubling.register_fake(torch.empty_like)
doubling.register_autograd(_double_in_place)


@pytest.fixture(params=["aot_eager", "inductor"])
def backend(request: pytest.FixtureRequest) -> str:
    stator.reset()
    return request.param


def test_an_input_written_to_by_a_backward_changes(backend: str) -> None:
    compiled = stator.compile(lambda x, counter: with_counter(x.sin(), counter), backend=backend)
    x, counter = torch.randn(3, requires_grad=True), torch.zeros(3)
    with pytest.warns(RuntimeWarning, match="deferred-effect"):
        result = compiled(x, counter)
    assert counter.tolist() == [0, 0, 0]
    result.sum().backward()
    assert counter.tolist() == [1, 1, 1]
    torch.testing.assert_close(x.grad, 3 * x.detach().cos())


def test_a_gradient_written_to_by_a_backward_changes(backend: str) -> None:
    compiled = stator.compile(lambda x: doubling(x.sin()), backend=backend)
    x, gradient = torch.randn(3, requires_grad=True), torch.ones(3)
    with pytest.warns(RuntimeWarning, match="deferred-effect"):
        result = compiled(x)
    result.backward(gradient)
    assert gradient.tolist() == [2, 2, 2]
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
