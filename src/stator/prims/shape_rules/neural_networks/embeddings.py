"""Shape rules of table look-ups by integer keys."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import has_zero
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.operands import fresh, overloads, shape_table

aten = torch.ops.aten


@shape_rule(aten.embedding.default, tags=("index",))
def embedding(
    weight: Any, indices: Any, padding_idx: Any = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> TensorMeta:
    refuse_if(len(weight.shape) != 2 or indices.dtype not in (torch.int64, torch.int32))
    refuse_if(has_zero(weight.shape[:1]) and not has_zero(indices.shape))
    return fresh((*indices.shape, weight.shape[1]), weight)


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


@shape_rule(*overloads("segment_reduce"), tags=("reduction",))
def segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0, **_: Any
) -> TensorMeta:
    """One element along `axis` for each segment; `lengths` and `offsets` have the dimensions up to `axis`."""
    refuse_if((lengths is None) == (offsets is None))
    count = lengths.shape[axis] if lengths is not None else offsets.shape[axis] - 1
    return fresh((*data.shape[:axis], count, *data.shape[axis + 1 :]), data)


shape_table(
    ("scatter",),
    {
        "embedding_dense_backward": lambda grad, indices, rows, *_: fresh((rows, grad.shape[-1]), grad),
        "_embedding_bag_backward": lambda grad, indices, offsets, bags, sizes, maxima, rows, scaled, mode, sparse, *_: (
            NotImplemented if sparse else fresh((rows, grad.shape[1]), grad)
        ),
    },
)
shape_table(
    ("index",),
    {
        # rows of several tensors, one behind the other, in a tensor that has a dimension of each level of nesting
        "_jagged_to_padded_dense_forward": lambda values, offsets, longest, *_: fresh(
            (offsets[0].shape[0] - 1, *longest, *values.shape[1:]), values
        ),
        # the inverse; without the number of rows, that number depends on data
        "_padded_dense_to_jagged_forward": lambda dense, offsets, rows=None: (
            NotImplemented if rows is None else fresh((rows, *dense.shape[len(offsets) + 1 :]), dense)
        ),
    },
)
