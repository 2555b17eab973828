"""Depthwise convolutions as loops on the device, beside eager: values, gradients, layouts; recorded with their step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.device import DEVICE
from tests.inductor.lower.depthwise_cases import CASES, depthwise
from torch import nn

import stator
from stator.prims.layout import same_strides


def step(call: Callable[..., Any], model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    result = F.silu(call(x))
    (result.double() * torch.linspace(-1, 1, result.numel(), device=DEVICE).view_as(result)).sum().backward()
    return [result.detach(), x.grad, *(one.grad for one in model.parameters())]


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_results_are_as_exact_as_eagers(name: str, dtype: torch.dtype, last: bool, mode: str | None) -> None:
    model, shape = depthwise(name)
    model = model.to(DEVICE, dtype)
    compiled = stator.compile(model, mode=mode)
    for _ in range(3):
        x = torch.randn(shape, device=DEVICE).to(dtype)
        if last:
            x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        exact = copy.deepcopy(model).double()
        right = step(exact, exact, x.double())
        expected, found = step(model, model, x), step(compiled, model, x)
        for got, want, truth in zip(found, expected, right, strict=True):
            assert same_strides(want.shape, got.stride(), want.stride())
            errors = [float((one.double() - truth).norm() / truth.norm()) for one in (got, want)]
            assert errors[0] <= 1.5 * errors[1] + torch.finfo(dtype).eps
