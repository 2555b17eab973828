"""The indices of the Trues of a mask, whose number depends on data. On CPUs `nonzero`, `x[mask]` and their like are
made of it."""

from __future__ import annotations

import torch


def _true_indices(mask: torch.Tensor) -> torch.Tensor:
    return mask.nonzero().t().contiguous()


_library = torch.library.Library("stator", "FRAGMENT")
# The mask is bool and has dimensions. The result is int64, for each dimension a row of indices as in `nonzero`.
_library.define("true_indices(Tensor mask) -> Tensor")
_library.impl("true_indices", _true_indices, "CompositeExplicitAutograd")

true_indices = torch.ops.stator.true_indices.default
