"""`torch.nn.functional.interpolate` with symbolic sizes, which the C++ behind it refuses or makes constants of."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from stator.graph.ir.size_bindings import is_symbolic

from .data_dependent_functions import stand_ins

aten = torch.ops.aten

# By mode, number of spatial dimensions, and antialias
_KERNELS = {
    ("nearest", 1, False): aten.upsample_nearest1d.default,
    ("nearest", 2, False): aten.upsample_nearest2d.default,
    ("nearest", 3, False): aten.upsample_nearest3d.default,
    ("nearest-exact", 1, False): aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 2, False): aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 3, False): aten._upsample_nearest_exact3d.default,
    ("linear", 1, False): aten.upsample_linear1d.default,
    ("bilinear", 2, False): aten.upsample_bilinear2d.default,
    ("bilinear", 2, True): aten._upsample_bilinear2d_aa.default,
    ("bicubic", 2, False): aten.upsample_bicubic2d.default,
    ("bicubic", 2, True): aten._upsample_bicubic2d_aa.default,
    ("trilinear", 3, False): aten.upsample_trilinear3d.default,
}


@stand_ins.register(F.interpolate)
def _interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """Call the kernel's operator with sizes as ATen computes them: a size times its factor, rounded down. What torch
    refuses, it refuses here, too."""
    spatial = input.dim() - 2
    kernel = _KERNELS.get((mode, spatial, antialias))
    given = size if size is not None else scale_factor
    each = list(given) if isinstance(given, (tuple, list)) else [given] * spatial
    wrong = (size is None) == (scale_factor is None) or len(each) != spatial
    wrong |= align_corners is not None and mode.startswith("nearest")
    wrong |= size is not None and bool(recompute_scale_factor)
    if kernel is None or wrong or not is_symbolic((tuple(input.shape), each)):
        return F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    corners = [] if mode.startswith("nearest") else [bool(align_corners)]
    if size is not None:
        return kernel(input, each, *corners)  # type: ignore[no-any-return, operator]
    sizes = [math.floor(length * factor) for length, factor in zip(input.shape[2:], each, strict=True)]
    factors = [] if recompute_scale_factor else each
    return kernel(input, sizes, *corners, *factors)  # type: ignore[no-any-return, operator]
