"""Shape rules of distances between vectors, and of histograms of values."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import broadcast_shapes
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import common_dtype

from .operands import fresh, overloads, shape_table
from .reductions import norm_dtype, reduced_shape

REDUCTION = ("reduction",)


@shape_rule(*overloads("_cdist_forward"), tags=REDUCTION)
def cdist_forward(x1: Any, x2: Any, p: float, compute_mode: int | None) -> TensorMeta:
    first, second = tuple(x1.shape), tuple(x2.shape)
    refuse_if(p < 0 or len(first) < 2 or len(second) < 2 or first[-1] != second[-1])
    return fresh((*broadcast_shapes(first[:-2], second[:-2]), first[-2], second[-2]), x1)


@shape_rule(*overloads("_pdist_forward"), tags=REDUCTION)
def pdist_forward(self: Any, p: float = 2.0) -> TensorMeta:
    """The upper triangle of a matrix of distances, n(n - 1)/2 numbers."""
    refuse_if(p < 0)
    rows = self.shape[0]
    return fresh((rows * (rows - 1) // 2,), self)


@shape_rule(*overloads("dist"), tags=REDUCTION)
def dist(self: Any, other: Any, p: Any = 2) -> TensorMeta:
    broadcast_shapes(tuple(self.shape), tuple(other.shape))
    dtype = common_dtype((self, other))
    return fresh((), self, norm_dtype(fresh((), self, dtype), None))


@shape_rule(*overloads("histc"), tags=REDUCTION)
def histc(self: Any, bins: Any = 100, min: Any = 0, max: Any = 0) -> TensorMeta:
    refuse_if(bins <= 0)
    return fresh((bins,), self)


@shape_rule(*overloads("histogram.bins_tensor"), tags=REDUCTION)
def histogram_of_bins(
    self: Any, bins: Any, *, weight: Any = None, density: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    count = bins.shape[0]
    return fresh((count - 1,), self), fresh((count,), self)


shape_table(
    REDUCTION,
    {
        "_euclidean_dist": lambda x1, x2: cdist_forward(x1, x2, 2.0, None),
        "histogram.bin_ct": lambda self, bins=100, **_: (fresh((bins,), self), fresh((bins + 1,), self)),
        "_histogramdd_bin_edges": lambda self, bins, **_: [fresh((count + 1,), self) for count in bins],
        "_histogramdd_from_bin_cts": lambda self, bins, **_: fresh(bins, self),
        "_histogramdd_from_bin_tensors": lambda self, bins, **_: fresh([edges.shape[0] - 1 for edges in bins], self),
        "hash_tensor": lambda self, dim=(), *, keepdim=False, **_: fresh(
            reduced_shape(tuple(self.shape), dim, keepdim), self, torch.uint64
        ),
    },
)
