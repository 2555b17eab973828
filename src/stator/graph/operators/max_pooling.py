"""`torch.nn.functional.max_pool1d` with symbolic sizes, of which the C++ behind it makes constants."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from stator.graph.ir.size_bindings import is_symbolic

from .data_dependent_functions import stand_ins


@stand_ins.register(F.max_pool1d)
def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Pool rows of one line in two dimensions, as ATen does for gradients."""
    if not is_symbolic(tuple(input.shape)) or not 2 <= input.dim() <= 3:
        plain: Any = F.max_pool1d
        return plain(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    given = (kernel_size, kernel_size if stride is None else stride, padding, dilation)
    window, steps, around, spread = (one[0] if isinstance(one, (tuple, list)) else one for one in given)
    pool: Any = F.max_pool2d
    found = pool(input.unsqueeze(-2), (1, window), (1, steps), (0, around), (1, spread), ceil_mode, return_indices)
    return tuple(one.squeeze(-2) for one in found) if return_indices else found.squeeze(-2)
