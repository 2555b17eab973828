"""Decompositions of gradients without a CPU kernel in eager, and corners that OpInfo leaves out, against autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stator.prims  # noqa: F401  (fills the records)
from stator.prims.record import records

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def decomposed(target: torch._ops.OpOverload, *args: object) -> object:
    rule = records[target].decompose
    assert rule is not None
    return rule(*args)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("wanted", [[True, True], [True, False], [False, True]])
def test_rms_norm(weighted: bool, wanted: list[bool]) -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True) if weighted else None
    grad = torch.randn_like(x)
    leaves = [x, weight] if weighted else [x]
    expected = torch.autograd.grad(F.rms_norm(x, [4, 5], weight, 1e-5), leaves, grad)
    rstd = (x.detach().square().mean((1, 2), keepdim=True) + 1e-5).rsqrt()
    given = None if weight is None else weight.detach()
    found = decomposed(aten._fused_rms_norm_backward.default, grad, x.detach(), [4, 5], rstd, given, wanted)
    for result, right, flag in zip(found, [*expected, None], [wanted[0], wanted[1] and weighted], strict=False):
        assert (result is not None) == flag
        if flag:
            torch.testing.assert_close(result, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding_idx", [-1, 3])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding_rows_add_up(padding_idx: int, by_frequency: bool) -> None:
    indices = torch.randint(0, 5, (6, 7))
    grad = torch.randn(6, 7, 4)
    args = (grad, indices, 9, padding_idx, by_frequency)
    expected = aten.embedding_dense_backward(*args)
    found = decomposed(aten.embedding_dense_backward.default, *args)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [True, False])
def test_nll_loss_ignores_targets(reduction: int, weighted: bool) -> None:
    """Also where every target is ignored, and the total weight is zero."""
    logs = torch.randn(6, 5).log_softmax(1)
    weight = torch.rand(5) if weighted else None
    for ignored in (torch.tensor([0, 3]), torch.arange(6)):
        target = torch.randint(0, 5, (6,))
        target[ignored] = -100
        loss, total = aten.nll_loss_forward(logs, target, weight, reduction, -100)
        args = (torch.randn_like(loss), logs, target, weight, reduction, -100, total)
        expected = aten.nll_loss_backward(*args)
        found = decomposed(aten.nll_loss_backward.default, *args)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("size", [(7, 3), (1, 1), (4, 10)])
def test_bilinear_interpolation(align_corners: bool, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    result = F.interpolate(x, size, mode="bilinear", align_corners=align_corners)
    grad = torch.randn_like(result)
    (expected,) = torch.autograd.grad(result, x, grad)
    found = decomposed(aten.upsample_bilinear2d_backward.default, grad, list(size), list(x.shape), align_corners)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [(8, 15), (6, 7), (2, 3)])
def test_nearest_interpolation(size: tuple[int, int]) -> None:
    """By whole factors, by others, and downwards."""
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    result = F.interpolate(x, size, mode="nearest")
    grad = torch.randn_like(result)
    (expected,) = torch.autograd.grad(result, x, grad)
    found = decomposed(aten.upsample_nearest2d_backward.default, grad, list(size), list(x.shape))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding(mode: str) -> None:
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    padding = [2, 3, 1, 2]
    result = F.pad(x, padding, mode=mode)
    grad = torch.randn_like(result)
    (expected,) = torch.autograd.grad(result, x, grad)
    target = aten.reflection_pad2d_backward if mode == "reflect" else aten.replication_pad2d_backward
    found = decomposed(target.default, grad, x.detach(), padding)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_gradients_of_special_values() -> None:
    """NaN, infinities and the corners of each activation."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 0.5, -0.5, 3.0, -3.0, 1.0])
    grad = torch.linspace(0.5, 1.5, 10)
    for target, rest in (
        (aten.elu_backward, None),
        (aten.hardshrink_backward, (0.5,)),
        (aten.softshrink_backward, (0.5,)),
        (aten.hardswish_backward, ()),
        (aten.hardsigmoid_backward, ()),
        (aten.threshold_backward, (0.5,)),
        (aten.logit_backward, (0.25,)),
        (aten.logit_backward, (None,)),
        (aten.leaky_relu_backward, (0.1, False)),
    ):
        args = (grad, 0.5, 1.5, 2.0, False, x) if rest is None else (grad, x, *rest)
        found = decomposed(target.default, *args)
        torch.testing.assert_close(found, target(*args), rtol=1e-6, atol=1e-6, equal_nan=True, msg=str(target))
