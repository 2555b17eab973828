"""The gradient of a loss over a vocabulary under `exact_rounding`: eager's bits, in two matrices and not three."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import stator
from stator.base import counters
from stator.runtime.softmax_gradient import may_overwrite_gradient


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("classes", [5, 37, 3001])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_logits_have_eagers_bits(threads: int, classes: int, reduction: str) -> None:
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits * 2, targets, reduction=reduction)

    before = torch.get_num_threads()
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    try:
        logits = torch.randn(70, classes)
        logits[3, 1], logits[4, 2], logits[5] = float("inf"), -float("inf"), 1e30
        targets = torch.randint(0, classes, (70,))
        targets[::7] = -100
        found = []
        for function in (loss, stator.compile(loss, fullgraph=True, options={"exact_rounding": True, "verify": True})):
            given = logits.clone().requires_grad_()
            result = function(given, targets)
            result.backward(torch.linspace(-1, 1, 70) if reduction == "none" else torch.tensor(0.7))
            assert given.grad is not None
            found.append((result.detach(), given.grad))
        for actual, expected in zip(found[1], found[0], strict=True):
            same = (actual.view(torch.int32) == expected.view(torch.int32)) | (actual.isnan() & expected.isnan())
            assert same.all()
    finally:
        torch.set_num_threads(before)


def test_the_gradient_of_logits_lies_where_that_of_the_loss_does() -> None:
    counters.clear()
    layer = torch.nn.Linear(4, 1 << 16)
    x, targets = torch.randn(8, 4), torch.randint(0, 1 << 16, (8,))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(layer(x), targets)

    stator.compile(loss, fullgraph=True, options={"exact_rounding": True, "verify": True})(x).backward()
    logits = 4 * 8 << 16
    assert may_overwrite_gradient(torch.float32, torch.get_num_threads())
    assert counters.counts["memory:backward_peak"] < 2.5 * logits
