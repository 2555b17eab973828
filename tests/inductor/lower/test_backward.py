"""Lowerings of gradients against eager: activations, normalisation, pooling, with ties and NaN, in both formats."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import assert_lowers, lowered_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


ACTIVATIONS = [
    lambda g, x: aten.threshold_backward(g, x, 0),
    lambda g, x: aten.sigmoid_backward(g, x.sigmoid()),
    lambda g, x: aten.tanh_backward(g, x.tanh()),
    lambda g, x: aten.gelu_backward(g, x),
    lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    lambda g, x: aten.silu_backward(g, x),
    lambda g, x: aten.hardsigmoid_backward(g, x),
    lambda g, x: aten.hardswish_backward(g, x),
    lambda g, x: aten.hardtanh_backward(g, x, -1, 2),
    lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    lambda g, x: aten.softplus_backward(g, x, 2.0, 4.0),
    lambda g, x: aten.elu_backward(g, 0.5, 1.5, 2.0, False, x),
    lambda g, x: aten.mish_backward(g, x),
    lambda g, x: aten.glu_backward(g[:, :4], x, 1),
    lambda g, x: aten.softshrink_backward(g, x, 0.5),
]


@pytest.mark.parametrize("at", range(len(ACTIVATIONS)))
def test_activation(at):
    x = torch.randn(6, 8) * 3
    x[0, :4] = torch.tensor([0.0, -1.0, 2.0, 3.0])
    assert_lowers(ACTIVATIONS[at], torch.randn(6, 8), x)


@pytest.mark.parametrize("at", [0, 6, 9])
def test_activation_of_nan(at):
    """Where eager decides alike in vectors and in what is left of a row."""
    assert_lowers(ACTIVATIONS[at], torch.ones(35), torch.full((35,), float("nan")))


def test_a_mean_over_no_elements():
    assert_lowers(lambda g, x: aten.mse_loss_backward(g, x, x + 1, 1), torch.tensor(1.0), torch.empty(0, 3))


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, True)])
def test_layer_norm(wanted):
    x, weight, bias = torch.randn(4, 5, 6), torch.randn(5, 6), torch.randn(5, 6)
    _, mean, rstd = aten.native_layer_norm(x, [5, 6], weight, bias, 1e-5)

    def function(grad, x, mean, rstd, weight, bias):
        results = aten.native_layer_norm_backward(grad, x, [5, 6], mean, rstd, weight, bias, list(wanted))
        return [result for result in results if result is not None]

    assert_lowers(function, torch.randn(4, 5, 6), x, mean, rstd, weight, bias, tolerance=1e-5)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_batch_norm(train, channels_last, weighted):
    x, grad = torch.randn(3, 4, 5, 6), torch.randn(3, 4, 5, 6)
    if channels_last:
        x, grad = x.to(memory_format=torch.channels_last), grad.to(memory_format=torch.channels_last)
    mean, var = torch.randn(4), torch.rand(4) + 0.5
    weight = [torch.randn(4)] if weighted else []

    def function(grad, x, mean, var, *weight):
        given = weight[0] if weight else None
        return aten.native_batch_norm_backward(grad, x, given, mean, var, mean, var, train, 1e-5, [True] * 3)

    assert_lowers(function, grad, x, mean, var, *weight, tolerance=1e-5)


def test_group_norm():
    x, grad, weight = torch.randn(3, 6, 5), torch.randn(3, 6, 5), torch.randn(6)
    _, mean, rstd = aten.native_group_norm(x, weight, None, 3, 6, 5, 2, 1e-5)

    def function(grad, x, mean, rstd, weight):
        return aten.native_group_norm_backward(grad, x, mean, rstd, weight, 3, 6, 5, 2, [True] * 3)

    assert_lowers(function, grad, x, mean, rstd, weight, tolerance=1e-5)


# (kernel, stride, padding, dilation, ceil_mode)
WINDOWS = [(3, 2, 1, 1, False), (2, 2, 0, 1, False), (3, 1, 1, 1, False), (3, 2, 1, 1, True), (2, 3, 0, 1, False)]


@pytest.mark.parametrize("window", [*WINDOWS, (3, 2, 0, 2, False)])
def test_max_pool_with_ties_and_nan(window):
    """Integers from a small range tie in most windows; the place and the gradient follow eager's choice."""
    kernel, stride, padding, dilation, ceil = window
    x = torch.randint(0, 3, (2, 8, 9, 10)).float()
    x[0, 0, 4, 5], x[1, 3, :3, :3] = float("nan"), float("-inf")
    x = x.to(memory_format=torch.channels_last)

    def forward(x):
        return aten.max_pool2d_with_indices(x, [kernel] * 2, [stride] * 2, [padding] * 2, [dilation] * 2, ceil)

    values, places = forward(x)
    assert_lowers(forward, x)

    def backward(grad, x, places):
        return aten.max_pool2d_with_indices_backward(
            grad, x, [kernel] * 2, [stride] * 2, [padding] * 2, [dilation] * 2, ceil, places
        )

    assert_lowers(backward, torch.randn_like(values), x, places)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("options", [(True, None), (False, None), (True, 7)])
def test_avg_pool(window, options):
    kernel, stride, padding, _, ceil = window
    x = torch.randn(2, 8, 9, 10).to(memory_format=torch.channels_last)
    pooled = aten.avg_pool2d(x, [kernel] * 2, [stride] * 2, [padding] * 2, ceil, *options)

    def backward(grad, x):
        return aten.avg_pool2d_backward(grad, x, [kernel] * 2, [stride] * 2, [padding] * 2, ceil, *options)

    assert_lowers(backward, torch.randn_like(pooled), x)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (6, 9)])
def test_adaptive_avg_pool(size):
    assert_lowers(aten._adaptive_avg_pool2d_backward, torch.randn(2, 3, *size), torch.randn(2, 3, 6, 9))


def test_a_layer_norms_gradient_is_two_passes():
    """One over the rows, for the input; one down the columns, for weight and bias together."""
    x, weight, bias = torch.randn(8, 16), torch.randn(16), torch.randn(16)
    _, mean, rstd = aten.native_layer_norm(x, [16], weight, bias, 1e-5)
    lowered = lowered_of(
        lambda grad, x, mean, rstd, weight, bias: aten.native_layer_norm_backward(
            grad, x, [16], mean, rstd, weight, bias, [True] * 3
        ),
        [torch.randn(8, 16), x, mean, rstd, weight, bias],
    )
    assert [len(node.outputs) for node in lowered.nodes] == [2, 2, 1]
