"""Operators that eager calls for tensors on GPUs alone, traced as if the tensors were there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stator
from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower
from stator.prims.record import TensorMeta

aten = torch.ops.aten
GPU = torch.device("cuda", 0)


def traced(call: Callable[..., Any], *tensors: torch.Tensor) -> tuple[list[Any], list[TensorMeta]]:
    """The operators of the graph, and its outputs' layouts."""
    mode = FakeMode()
    fakes = [mode.make(TensorMeta(tuple(one.shape), one.stride(), one.dtype, GPU, 0)) for one in tensors]
    with torch.no_grad():  # autograd refuses tensors of devices that are not here
        graph = trace(call, fakes, keep=can_lower).graph.graph
    (output,) = [node for node in graph.nodes if node.op == "output"]
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    return targets, [node.meta["val"] for node in output.args[0]]


def test_cudnn_s_sampler() -> None:
    image, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 7, 2)
    targets, (result,) = traced(lambda x, at: (aten.cudnn_grid_sampler(x, at),), image, grid)
    assert not any("cudnn" in str(target) for target in targets)
    assert result.shape == (2, 3, 4, 7)
    _, found = traced(lambda x, at, g: aten.cudnn_grid_sampler_backward(x, at, g), image, grid, torch.ones(2, 3, 4, 7))
    assert [one.shape for one in found] == [image.shape, grid.shape]


def test_no_library_computes_ctc_losses() -> None:
    """What cuDNN saves for the backward has a size of its own choice."""
    logits, labels = torch.randn(50, 4, 20).log_softmax(-1), torch.randint(1, 20, (4, 30))
    program = lambda x, y: (F.ctc_loss(x, y, (50,) * 4, (30,) * 4, reduction="none"),)  # noqa: E731
    targets, (result,) = traced(program, logits, labels)
    assert not any("cudnn" in str(target) or "miopen" in str(target) for target in targets)
    assert result.shape == (4,)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_of_a_batch_norm(training: bool) -> None:
    x, one = torch.randn(3, 2, 4), torch.ones(2)
    program = lambda x, *rest: aten.native_batch_norm(x, *rest, training, 0.1, 1e-5)  # noqa: E731
    _, found = traced(program, x, one, one, one, one)
    assert [result.shape for result in found[:3]] == [(3, 2, 4), (2,), (2,)]


@pytest.mark.parametrize("training", [False, True])
def test_cudnn_s_batch_norm(training: bool) -> None:
    """Traced where there is no cuDNN, as loops: results, gradients and running statistics are those of `batch_norm`."""
    x, weight, bias = torch.randn(64, 32, 9, 9), torch.rand(32), torch.randn(32)
    running = [torch.randn(32), torch.rand(32) + 0.1]  # no variance so small that rounding counts
    seed = torch.rand(x.shape)

    def outcome(program: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        inputs = [one.clone().requires_grad_() for one in (x, weight, bias)]
        statistics = [one.clone() for one in running]
        result = program(*inputs, *statistics)
        return [result, *torch.autograd.grad(result, inputs, seed), *statistics]

    by_cudnn = lambda *args: torch.cudnn_batch_norm(*args, training, 0.1, 1e-5)[0].tanh()  # noqa: E731
    plain = lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, training, 0.1, 1e-5).tanh()  # noqa: E731
    for actual, expected in zip(outcome(stator.compile(by_cudnn)), outcome(plain), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    targets, _ = traced(lambda x, *rest: (torch.cudnn_batch_norm(x, *rest, True, 0.1, 1e-5)[0],), x, *[weight] * 4)
    assert not any("cudnn" in str(target) for target in targets)


def test_layouts_of_factors() -> None:
    """cuSOLVER computes the adjoint of LAPACK's right factor, and eigenvectors are copied from the CPU."""
    square = torch.randn(5, 5)
    assert traced(torch.linalg.eig, square)[1][1].stride == (5, 1)
    left, _, right = traced(torch.linalg.svd, square)[1]
    assert (left.stride, right.stride) == ((1, 5), (5, 1))


def test_the_absolute_value_of_booleans() -> None:
    (result,) = traced(lambda x: (x.abs(),), torch.ones(3, dtype=torch.bool))[1]
    assert result.dtype is torch.bool


def test_bounds_on_the_cpu_are_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        traced(lambda x: (x.clamp(max=torch.tensor(2.0)),), torch.ones(3))
    (result,) = traced(lambda x: (torch.maximum(x, torch.tensor(2.0)),), torch.ones(3))[1]
    assert result.device == GPU
