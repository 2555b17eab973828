"""Attention written by hand, in half floats on a GPU: as near to float64 as eager, and NaN where float64 has it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.device import DEVICE
from torch import Tensor

import stator
from stator.aot.trace import fused_attention
from stator.base import counters

pytestmark = [pytest.mark.gpu, pytest.mark.fixed_sizes]
BIASES = {"none": None, "keys": (2, 1, 1, 50), "heads": (1, 4, 50, 50), "queries": (2, 1, 50, 50)}


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    scores = query @ key.transpose(-1, -2) * 0.2
    if bias is not None:
        scores = scores + bias
    return F.softmax(scores, -1, dtype=torch.float32).to(value.dtype) @ value


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(BIASES))
@pytest.mark.parametrize("width", [64, 20])
@pytest.mark.parametrize("special", ["", "query", "key"])
def test_attention_in_half_floats(
    dtype: torch.dtype, name: str, width: int, special: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_attention, "_pays", lambda *_: True)
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 50, width, device=DEVICE).to(dtype) for _ in range(3))
    shape = BIASES[name]
    bias = None if shape is None else torch.randn(shape, device=DEVICE).to(dtype)
    if special:
        (query if special == "query" else key)[0, 1, 3, 0] = math.inf
    if special and bias is not None:
        bias[..., 3:5] = -math.inf
        bias[0, 0, -1] = -math.inf
    stator.reset()
    before = counters.counts["fused_attention"]
    with torch.no_grad():
        found, eager = stator.compile(attend)(query, key, value, bias), attend(query, key, value, bias)
        truth = attend(query.double(), key.double(), value.double(), None if bias is None else bias.double())
    fused = counters.counts["fused_attention"] > before
    assert fused or (width == 20 and bias is not None)  # ATen has no fused kernel for a bias with rows of 40 bytes
    assert torch.equal(found.isnan(), truth.isnan())
    if fused:  # which spares a rounding; other programs round as eager does
        shown = ~eager.isnan() & ~truth.isnan()
        assert (found - truth)[shown].abs().mean() <= (eager - truth)[shown].abs().mean()
