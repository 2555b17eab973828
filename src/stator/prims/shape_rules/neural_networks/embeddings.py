"""Shape rules of table look-ups by integer keys."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import has_zero
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.operands import fresh, overloads

aten = torch.ops.aten


@shape_rule(aten.embedding.default, tags=("index",))
def embedding(
    weight: Any, indices: Any, padding_idx: Any = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> TensorMeta:
    refuse_if(len(weight.shape) != 2 or indices.dtype not in (torch.int64, torch.int32))
    refuse_if(has_zero(weight.shape[:1]) and not has_zero(indices.shape))
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
    refuse_if(num_classes <= 0 and 0 in tuple(self.shape))
    return fresh((*self.shape, num_classes), self, torch.int64)


SUM, MEAN, MAX = range(3)


@shape_rule(*overloads("_embedding_bag"), tags=("index", "reduction"))
def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """The sums, and the gradient's data: the bag of each index, the size of each bag, the index of each maximum. The
    bag of each index is left empty if the CPU's fast kernel sums rows directly."""
    if weight.device.type != "cpu":
        return NotImplemented
    keys = torch.promote_types(indices.dtype, offsets.dtype)
    given, width = offsets.shape[0], weight.shape[1]
    bags = given - 1 if include_last_offset else given
    direct = (
        mode == SUM
        and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and weight.stride()[1] == 1
        and padding_idx < 0
        and (per_sample_weights is None or per_sample_weights.stride()[0] == 1)
    )
    sizes = fresh((bags,), offsets, keys)
    return (
        fresh((bags, width), weight),
        fresh((0,) if direct else (indices.shape[0],), indices, keys),
        sizes,
        fresh((bags, width), offsets, keys) if mode == MAX else sizes,
    )


@shape_rule(*overloads("_embedding_bag_forward_only"), tags=("index", "reduction"))
def embedding_bag_forward_only(weight: Any, indices: Any, offsets: Any, *rest: Any) -> Any:
    """The sums leave room for the size of a last, empty bag, which is never read."""
    results = embedding_bag(weight, indices, offsets, *rest)
    mode = rest[1] if len(rest) > 1 else SUM
    if results is NotImplemented or mode != SUM:
        return results
    sizes = fresh((offsets.shape[0],), offsets, results[2].dtype)
    return (*results[:2], sizes, sizes)


@shape_rule(*overloads("_embedding_bag_backward"), tags=("scatter",))
def embedding_bag_backward(
    grad: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    *_rest: Any,
) -> Any:
    return NotImplemented if sparse else fresh((num_weights, grad.shape[1]), grad)


@shape_rule(*overloads("segment_reduce"), tags=("reduction",))
def segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0, **_: Any
) -> TensorMeta:
    """One element along `axis` for each segment; `lengths` and `offsets` have the dimensions up to `axis`."""
    refuse_if((lengths is None) == (offsets is None))
    count = lengths.shape[axis] if lengths is not None else offsets.shape[axis] - 1
    return fresh((*data.shape[:axis], count, *data.shape[axis + 1 :]), data)


@shape_rule(*overloads("_jagged_to_padded_dense_forward"), tags=("index",))
def jagged_to_padded(values: Any, offsets: Any, max_lengths: Any, padding_value: float = 0.0) -> TensorMeta:
    """Rows of several tensors, one behind the other, in a tensor that has a dimension of each level of nesting."""
    return fresh((offsets[0].shape[0] - 1, *max_lengths, *values.shape[1:]), values)


@shape_rule(*overloads("_padded_dense_to_jagged_forward"), tags=("index",))
def padded_to_jagged(dense: Any, offsets: Any, total_L: Any = None) -> Any:
    """The inverse. Without the number of rows, that number depends on data."""
    return NotImplemented if total_L is None else fresh((total_L, *dense.shape[len(offsets) + 1 :]), dense)
