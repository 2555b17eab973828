"""What eager has no kernel for, or refuses to convert: compiled code, which could compute something, raises too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import stator

aten = torch.ops.aten
Function = Callable[[torch.Tensor], Any]

NUMBERS: dict[str, tuple[torch.dtype, Function]] = {
    "clamp": (torch.uint8, lambda x: x.clamp(max=1000)),
    "clamp_": (torch.int8, lambda x: x.clone().clamp_(-1000)),
    "clamp_min": (torch.int8, lambda x: torch.clamp_min(x, -1000)),
    "masked_fill": (torch.float16, lambda x: x.masked_fill(x > 1, -1e9)),
    "masked_fill_": (torch.float32, lambda x: x.clone().masked_fill_(x > 1, 1e39)),
    "full": (torch.float32, lambda x: torch.full((40,), 1000, dtype=torch.uint8) + x),
    "full_like": (torch.uint8, lambda x: torch.full_like(x, 1000)),
    "new_full": (torch.int8, lambda x: x.new_full((40,), 1000)),
    "fill": (torch.int8, lambda x: aten.fill.Scalar(x, 1000)),
    "fill_": (torch.int8, lambda x: x.clone().fill_(1000)),
    "pad": (torch.int8, lambda x: F.pad(x, (1, 1), value=1000)),
    "scatter": (torch.int8, lambda x: x.scatter(0, x.long(), 1000)),
    "index_fill": (torch.int8, lambda x: x.index_fill(0, x.long(), 1000)),
    "alpha": (torch.int8, lambda x: torch.sub(x, x, alpha=1000)),
    "hardtanh": (torch.int8, lambda x: F.hardtanh(x, -1, 1000)),
    "threshold": (torch.float16, lambda x: F.threshold(x, 1, 1e6)),
    "addcmul": (torch.int8, lambda x: torch.addcmul(x, x, x, value=1000)),
    "lerp": (torch.float32, lambda x: torch.lerp(x, x + 1, 1e39)),
    "pow": (torch.int8, lambda x: x**1000),
    "scalar_tensor": (torch.int8, lambda x: x + torch.scalar_tensor(1000, dtype=torch.int8)),
}

DTYPES: dict[str, tuple[torch.dtype, Function]] = {
    "number minus bool": (torch.bool, lambda x: 1 - x),
    "bool minus number": (torch.bool, lambda x: x - 1),
    "integer minus bool": (torch.int64, lambda x: x - (x > 1)),
    "abs of bool": (torch.bool, torch.abs),
    "floor of bool": (torch.bool, torch.floor),
    "relu6 of bool": (torch.bool, F.relu6),
    "threshold of bool": (torch.bool, lambda x: F.threshold(x, 0, 1)),
    "hardtanh of unsigned": (torch.uint8, F.hardtanh),
    "frac of integers": (torch.int64, torch.frac),
    "leaky_relu of integers": (torch.int64, F.leaky_relu),
    "elu of integers": (torch.int32, F.elu),
    "selu of integers": (torch.int32, F.selu),
    "celu of integers": (torch.int32, F.celu),
    "logsigmoid of integers": (torch.int64, F.logsigmoid),
    "logaddexp of integers": (torch.int64, lambda x: torch.logaddexp(x, x)),
    "deg2rad of complex": (torch.complex64, torch.deg2rad),
    "logit of complex": (torch.complex64, torch.logit),
    "isposinf of complex": (torch.complex64, torch.isposinf),
    "nansum of complex": (torch.complex64, torch.nansum),
}


@pytest.mark.parametrize("name", [*NUMBERS, *DTYPES])
def test_errors_are_those_of_eager(name: str) -> None:
    dtype, function = {**NUMBERS, **DTYPES}[name]
    x = (torch.arange(40) % 4).to(dtype)
    with pytest.raises(RuntimeError) as expected:  # NotImplementedError is one
        function(x)
    with pytest.raises(RuntimeError) as actual:
        stator.compile(function)(x)
    assert (actual.type, str(actual.value)) == (expected.type, str(expected.value))
