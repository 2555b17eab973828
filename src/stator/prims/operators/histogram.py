"""`histc` with a size as the number of bins, which ATen's operator takes as a number of the program."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import TensorMeta, shape_rule
from stator.prims.shape_rules import distances


def _histogram(values: torch.Tensor, bins: int, low: Any, high: Any) -> torch.Tensor:
    return torch.histc(values, bins, low, high)


_library = torch.library.Library("stator", "FRAGMENT")
_library.define("histc(Tensor values, SymInt bins, Scalar low, Scalar high) -> Tensor")
_library.impl("histc", _histogram, "CompositeExplicitAutograd")

histc = torch.ops.stator.histc.default


@shape_rule(histc, tags=("reduction",))
def histc_shape(values: Any, bins: Any, low: Any, high: Any) -> TensorMeta:
    return distances.histc(values, bins, low, high)
