"""Lowerings of cumulative sums, products and their like, for devices whose kernels have scans."""

from __future__ import annotations

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
_LONGEST = 16384  # elements of a single row that one program computes; the library divides longer ones among programs


@lowers(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def _scan(builder: LoweringBuilder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """NotImplemented for a single long row, and where eager refuses: deterministic algorithms, some dtypes."""
    meta, name = builder.meta, builder.node.target._schema.name.removeprefix("aten::")
    if not traits_of(x.device).scans or not x.rank or torch.are_deterministic_algorithms_enabled():
        return NotImplemented
    dim = wrap_dim(dim, x.rank)
    length, count = x.sizes.hints((x.shape[dim], x.numel))
    if length == count > _LONGEST or any(x.sizes.decide("==", size, 0) for size in x.shape):
        return NotImplemented
    if meta.dtype is torch.bool or (name == "logcumsumexp" and not meta.dtype.is_floating_point):
        return NotImplemented
    target = builder.new_buffer(x.shape, meta.stride, meta.dtype, x.device)
    builder.scan(_KINDS[name], x, dim, computation_dtype(meta.dtype), target)
    return target
