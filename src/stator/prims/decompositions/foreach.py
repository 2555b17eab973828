"""Operators on lists of tensors that take their numbers from a one-dimensional tensor: one for each element."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import decomposition
from stator.prims.type_promotion import computation_dtype

from .decomposition_decorator import cast

aten = torch.ops.aten


@decomposition(aten._foreach_addcmul.Tensor)
def foreach_addcmul(self: Any, tensor1: Any, tensor2: Any, scalars: Any) -> list[Any]:
    return _with_factors(self, tensor1, tensor2, scalars, aten.mul.Tensor)


@decomposition(aten._foreach_addcdiv.Tensor)
def foreach_addcdiv(self: Any, tensor1: Any, tensor2: Any, scalars: Any) -> list[Any]:
    return _with_factors(self, tensor1, tensor2, scalars, aten.div.Tensor)


def _with_factors(self: Any, tensor1: Any, tensor2: Any, scalars: Any, combine: Any) -> list[Any]:
    """self + scalars[n] * tensor1 (* or /) tensor2 for each n; a factor counts as a number and does not promote."""
    results = []
    for at, (base, first, second) in enumerate(zip(self, tensor1, tensor2, strict=True)):
        factor = aten.select.int(scalars, 0, at)
        wide = computation_dtype(base.dtype)
        factor = aten._to_copy.default(factor, dtype=wide)
        first, second = (cast(tensor, wide) for tensor in (first, second))
        summed = aten.add.Tensor(cast(base, wide), combine(aten.mul.Tensor(first, factor), second))
        results.append(cast(summed, base.dtype))
    return results
