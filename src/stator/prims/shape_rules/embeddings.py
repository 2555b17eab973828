"""Shape rules of table look-ups by integer keys."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.record import TensorMeta, shape_rule

from .operands import fresh, overloads

aten = torch.ops.aten


@shape_rule(aten.embedding.default, tags=("index",))
def embedding(
    weight: Any, indices: Any, padding_idx: Any = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> TensorMeta:
    if len(weight.shape) != 2:
        raise RuntimeError("'weight' must be 2-D")
    if indices.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            f"{indices.dtype} instead (while checking arguments for embedding)"
        )
    return fresh((*indices.shape, weight.shape[1]), weight)


@shape_rule(*overloads("embedding_dense_backward"), tags=("scatter",))
def embedding_dense_backward(
    grad_output: Any, indices: Any, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> TensorMeta:
    return fresh((num_weights, grad_output.shape[-1]), grad_output)


@shape_rule(*overloads("one_hot"), tags=("pointwise",))
def one_hot(self: Any, num_classes: Any = -1) -> Any:
    if num_classes == -1:
        return NotImplemented
    return fresh((*self.shape, num_classes), self, torch.int64)
