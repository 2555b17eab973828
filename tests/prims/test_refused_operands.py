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
    "labels that are floats": (torch.float32, lambda x: F.cross_entropy(x.view(10, 4), x[:10])),
    "images of such labels": (torch.float32, lambda x: F.cross_entropy(x.view(1, 4, 5, 2), x[:10].view(1, 5, 2))),
    "narrow labels": (torch.int32, lambda x: F.cross_entropy(x.view(10, 4).float(), x[:10])),
    "adaptive_max_pool2d of integers": (torch.int64, lambda x: F.adaptive_max_pool2d(x.view(1, 5, 8), 2)),
    "avg_pool1d of bytes": (torch.uint8, lambda x: F.avg_pool1d(x.view(1, 5, 8), 2)),
    "avg_pool3d of halves": (torch.float16, lambda x: F.avg_pool3d(x.view(1, 5, 2, 2, 2), 2)),
    "max_unpool2d of integers": (torch.int64, lambda x: F.max_unpool2d(x.view(1, 1, 5, 8), x.view(1, 1, 5, 8), 2)),
    "reflected padding of bool": (torch.bool, lambda x: F.pad(x.view(1, 5, 8), (1, 1), "reflect")),
    "replicated padding of unsigned": (torch.uint16, lambda x: F.pad(x.view(1, 5, 8), (1, 1), "replicate")),
    "unfold of integers": (torch.int64, lambda x: F.unfold(x.view(1, 1, 5, 8), 2)),
    "nearest upsampling of integers": (torch.int64, lambda x: F.interpolate(x.view(1, 5, 8), 16)),
    "glu of integers": (torch.int64, F.glu),
    "prelu of integers": (torch.int64, lambda x: F.prelu(x, x[1:2])),
    "lerp of integers": (torch.int64, lambda x: torch.lerp(x, x, 0.5)),
    "lerp_ of integers": (torch.int64, lambda x: x.clone().lerp_(x, x)),
    "addcmul of bool": (torch.bool, lambda x: torch.addcmul(x, x, x)),
    "trace of bool": (torch.bool, lambda x: torch.trace(x.view(5, 8))),
    "cdist of halves": (torch.float16, lambda x: torch.cdist(x.view(5, 8), x.view(5, 8))),
    "smooth_l1_loss of integers": (torch.int64, lambda x: F.smooth_l1_loss(x, x)),
    "mse_loss of complex": (torch.complex64, lambda x: F.mse_loss(x, x)),
    "batch_norm of complex": (torch.complex64, lambda x: F.batch_norm(x.view(5, 8), None, None, training=True)),
    "zeta of halves": (torch.bfloat16, lambda x: torch.special.zeta(x, x)),
    "Bessel functions of halves": (torch.float16, torch.special.bessel_j0),
    "Bessel functions of no halves": (torch.float16, lambda x: torch.special.bessel_j0(x[:0])),
}

SIZES: dict[str, tuple[torch.dtype, Function]] = {
    "rows of another slice": (torch.float32, lambda x: torch.slice_scatter(x.view(5, 8), x.view(5, 8)[1:], 0, 2)),
    "one row for a slice": (torch.float32, lambda x: torch.slice_scatter(x.view(5, 8), x.view(5, 8)[:1])),
    "a row for an element": (torch.float32, lambda x: torch.select_scatter(x, x[:1], 0, 1)),
    "a longer diagonal": (torch.float32, lambda x: torch.diagonal_scatter(x.view(5, 8), x[:8])),
    "more indices than sources": (torch.float32, lambda x: x.scatter(0, torch.zeros(7, dtype=torch.int64), x[:5])),
    "wider indices": (torch.float32, lambda x: x.view(5, 8).scatter_add(0, x.long().view(4, 10), x.view(4, 10))),
    "another batch of grids": (
        torch.float32,
        lambda x: F.grid_sample(x.view(1, 1, 5, 8), x.view(2, 2, 5, 2), align_corners=False),
    ),
    "a negative beta": (torch.float32, lambda x: F.smooth_l1_loss(x, x, beta=-1.0)),
    "a delta of 0": (torch.float32, lambda x: F.huber_loss(x, x, delta=0.0)),
    "distances of a negative order": (torch.float32, lambda x: torch.cdist(x.view(5, 8), x.view(5, 8), -1.0)),
    "norms of a negative order": (torch.float32, lambda x: torch.renorm(x.view(5, 8), -1.0, 0, 1.0)),
    "a negative norm": (torch.float32, lambda x: torch.renorm(x.view(5, 8), 1.0, 0, -1.0)),
    "another rank of sources": (torch.float32, lambda x: x.view(5, 8).index_add(0, x.long()[:2], x[:2])),
    "norms of a vector": (torch.float32, lambda x: torch.renorm(x, 1.0, 0, 1.0)),
    "a copy past the end": (torch.float32, lambda x: torch.narrow_copy(x, 0, 41, 0)),
    "another approximation": (torch.float32, lambda x: F.gelu(x, approximate="erf")),
    "another number of positions": (
        torch.float32,
        lambda x: F.max_unpool2d(x.view(1, 1, 5, 8), x.long()[:20].view(1, 1, 5, 4), 2),
    ),
    "negative padding": (torch.float32, lambda x: F.avg_pool1d(x.view(1, 5, 8), 2, padding=-1)),
    "a dilation of 0": (torch.float32, lambda x: F.max_pool1d(x.view(1, 5, 8), 2, dilation=0)),
    "a divisor of 0": (torch.float32, lambda x: F.avg_pool2d(x.view(1, 5, 8), 2, divisor_override=0)),
    "bounds with dimensions": (torch.float32, lambda x: torch.linspace(x, x, 3)),
    "another number of strided elements": (torch.float32, lambda x: torch.as_strided_scatter(x, x[:4], (5,), (2,))),
}


@pytest.mark.parametrize("name", [*NUMBERS, *DTYPES, *SIZES])
def test_errors_are_those_of_eager(name: str) -> None:
    dtype, function = {**NUMBERS, **DTYPES, **SIZES}[name]
    x = (torch.arange(40) % 4).to(dtype)
    with pytest.raises((RuntimeError, IndexError)) as expected:  # NotImplementedError is a RuntimeError
        function(x)
    with pytest.raises((RuntimeError, IndexError)) as actual:
        stator.compile(function)(x)
    assert (actual.type, str(actual.value)) == (expected.type, str(expected.value))


TAKEN: dict[str, tuple[torch.Tensor, Function]] = {
    "nothing to shuffle": (torch.ones(0, 4, 4, 4, dtype=torch.uint16), lambda x: F.pixel_shuffle(x, 2)),
    "integers beside floats": (torch.arange(4), lambda x: F.smooth_l1_loss(x, torch.ones(4))),
    "bytes": (torch.ones(1, 2, 4, dtype=torch.uint8), lambda x: F.interpolate(x, 8)),
    "averages of integers": (torch.ones(1, 4, 4, dtype=torch.int64), lambda x: F.avg_pool2d(x, 2)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_taken(name: str) -> None:
    x, function = TAKEN[name]
    torch.testing.assert_close(stator.compile(function, fullgraph=True)(x), function(x))
