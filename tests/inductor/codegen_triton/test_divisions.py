"""Which divisions kernels approximate. Needs no GPU: kernels are merged, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.inductor.claimed_gpu import scheduled_on_gpu

from stator.inductor.codegen.triton.divisions import merge_members
from stator.inductor.schedule.groups import Group

pytestmark = pytest.mark.fixed_sizes


def divisions(function: Callable[..., Any], *dtypes: torch.dtype) -> list[str]:
    """The names of a kernel's divisions."""
    found, lowered = scheduled_on_gpu(function, [torch.empty(64, 512, dtype=dtype) for dtype in dtypes])
    (group,) = [step for step in found.steps if isinstance(step, Group)]
    kernel = merge_members(group, lowered.buffers, lowered.sizes)
    return [value.name for value in kernel.values if value.name.endswith(("div", "reciprocal"))]


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_quotients_that_are_rounded_to_half_floats_are_approximate(half: torch.dtype) -> None:
    assert divisions(F.silu, half) == ["approximate_div"]


def test_quotients_of_single_precision_are_exact() -> None:
    assert divisions(F.silu, torch.float32) == ["div"]
    assert divisions(lambda x: F.silu(x.float()), torch.bfloat16) == ["div"]


def test_quotients_that_single_precision_sees_too_are_exact() -> None:
    def function(x: torch.Tensor) -> Any:
        quotient = 1 / (x.float().exp() + 1)
        return quotient.bfloat16(), quotient.sum(-1)

    assert divisions(function, torch.bfloat16) in (["reciprocal"], ["div"])


def test_quotients_of_two_half_floats_are_exact() -> None:
    assert divisions(torch.div, torch.float16, torch.float16) == ["div"]
