"""Lowerings of gradients against eager: activations, normalisation, pooling, with ties and NaN, in both formats."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import assert_lowers, lowered_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_a_mean_over_no_elements():
    assert_lowers(lambda g, x: aten.mse_loss_backward(g, x, x + 1, 1), torch.tensor(1.0), torch.empty(0, 3))


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
