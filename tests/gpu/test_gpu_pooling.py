"""Training steps with max pooling, whose places are kept in a byte each, beside eager on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.device import DEVICE

import stator


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
@pytest.mark.parametrize("channels_last", (True, False))
@pytest.mark.parametrize("geometry", [(3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 0), ((3, 2), (2, 1), (1, 0))])
def test_max_pooling_and_its_gradient(geometry: Any, channels_last: bool, mode: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x * 2, *geometry) * 2

    compiled = stator.compile(program, mode=mode, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 16, 45, 37, device=DEVICE)
        x[0, 0, :6, :6], x[:, 2] = -torch.inf, 1
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        results = []
        for run in (compiled, program):
            given = x.clone().requires_grad_()
            found = run(given)
            weights = (torch.arange(found.numel(), device=DEVICE) % 7).view_as(found)
            results.append([found, *torch.autograd.grad((found.nan_to_num(0, 0, 0) * weights).sum(), given)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)
