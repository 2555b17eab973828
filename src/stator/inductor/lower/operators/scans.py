"""Lowerings of cumulative sums, products and their like, for devices whose kernels have scans."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.inductor.devices import traits_of
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Tensor
from stator.prims.layout import wrap_dim
from stator.prims.type_promotion import computation_dtype

aten = torch.ops.aten
_KINDS = {"cumsum": "sum", "cumprod": "prod", "logcumsumexp": "logsumexp"}
_LONGEST = 4096  # elements of a scan that one program computes, where few programs work at once


@lowers(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def _scan(builder: LoweringBuilder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """NotImplemented for few long rows, which the library divides among programs, and for deterministic algorithms,
    under which eager refuses."""
    if not traits_of(x.device).scans or not x.rank or torch.are_deterministic_algorithms_enabled():
        return NotImplemented
    dim, meta = wrap_dim(dim, x.rank), builder.meta
    shape = x.sizes.hints(x.shape)
    many = math.prod(shape) >= traits_of(x.device).programs * shape[dim]
    if (shape[dim] > _LONGEST and not many) or any(x.sizes.decide("==", size, 0) for size in x.shape):
        return NotImplemented
    name = builder.node.target._schema.name.removeprefix("aten::")
    target = builder.new_buffer(x.shape, meta.stride, meta.dtype, x.device)
    builder.scan(_KINDS[name], x, dim, computation_dtype(meta.dtype), target)
    return target
