"""Shape rules of gathers and scatters by index tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.base.errors import StatorError
from stator.prims.layout import (
    Sizes,
    always_equal,
    broadcast_shapes,
    elementwise_strides,
    has_zero,
    holds,
    is_unknown,
    numel,
    surely,
    wrap_dim,
)
from stator.prims.record import TensorMeta, record, shape_rule
from stator.prims.refusal import Refused, refuse_if
from stator.prims.type_promotion import check_range

from .like_arguments import preserved
from .operands import fresh, overloads, shape_table, unchanged_argument, with_in_place

aten = torch.ops.aten
INDEX = ("index",)
SCATTER = ("scatter",)
MASKS = (torch.bool, torch.uint8)

DATA_DEPENDENT = """
    nonzero masked_select _unique2 unique_consecutive unique_dim _local_scalar_dense item equal allclose bincount
    is_nonzero repeat_interleave.Tensor nonzero_numpy
"""
for _target in overloads(DATA_DEPENDENT):
    record(_target).tags |= {"data_dependent"}


def broadcast_indices(indices: Sequence[Any]) -> Sizes:
    shape: Sizes = ()
    for index in indices:
        if index is not None:
            try:
                shape = broadcast_shapes(shape, tuple(index.shape))
            except StatorError:
                raise
            except RuntimeError:
                raise Refused from None
    return shape


def indexed_parts(self: Any, indices: Sequence[Any]) -> tuple[Sizes, list[tuple[Sizes, Sizes]]] | None:
    """Return the result's shape and the layouts that decide its strides: the source with zero strides in indexed
    dimensions, and the index tensors. None if an index is a mask, because the result's size then depends on data."""
    shape, strides = tuple(self.shape), self.stride()
    refuse_if(len(indices) > len(shape))
    given = [*indices, *(None,) * (len(shape) - len(indices))]
    for index in given:
        if index is not None and index.dtype in MASKS:
            return None
        refuse_if(index is not None and index.dtype not in (torch.int64, torch.int32))
    replacement = broadcast_indices(given)
    order = list(range(len(shape)))
    indexed = [dim for dim in order if given[dim] is not None]
    if not indexed:
        return shape, [(shape, strides)]
    if indexed[-1] - indexed[0] != len(indexed) - 1:  # not adjacent: the index dimensions come first
        order = indexed + [dim for dim in order if given[dim] is None]
        before: list[int] = []
        after = order[len(indexed) :]
    else:
        before, after = order[: indexed[0]], order[indexed[-1] + 1 :]
    refuse_if(has_zero([shape[dim] for dim in indexed]) and not has_zero(replacement))
    result = (*(shape[d] for d in before), *replacement, *(shape[d] for d in after))
    layouts = [(result, (*(strides[d] for d in before), *(0,) * len(replacement), *(strides[d] for d in after)))]
    for dim in indexed:
        layouts.append(index_layout(given[dim], replacement, len(before), len(after)))
    return result, layouts


def index_layout(index: Any, replacement: Sizes, before: int, after: int) -> tuple[Sizes, Sizes]:
    """Return shape and strides of an index tensor, broadcast to `replacement`, among the result's dimensions."""
    own, strides = tuple(index.shape), index.stride()
    missing = len(replacement) - len(own)
    expanded = (0,) * missing + tuple(
        0 if always_equal(size, 1) and not always_equal(target, 1) else stride
        for size, target, stride in zip(own, replacement[missing:], strides, strict=True)
    )
    return (1,) * before + replacement + (1,) * after, (0,) * before + expanded + (0,) * after


@shape_rule(*overloads("index.Tensor _unsafe_index.Tensor"), tags=INDEX)
def index(self: Any, indices: Sequence[Any]) -> Any:
    parts = indexed_parts(self, indices)
    if parts is None:
        return NotImplemented
    shape, layouts = parts
    return fresh(shape, self, stride=elementwise_strides(shape, layouts))


@shape_rule(*overloads("index_put_ _index_put_impl_"), tags=("scatter", "inplace"))
def index_put_(self: Any, indices: Sequence[Any], values: Any, *_flags: bool) -> TensorMeta:
    _check_put(self, indices, values)
    return unchanged_argument(self)


@shape_rule(*overloads("index_put _unsafe_index_put _index_put_impl"), tags=SCATTER)
def index_put(self: Any, indices: Sequence[Any], values: Any, *_flags: bool) -> TensorMeta:
    _check_put(self, indices, values)
    return preserved(self)


def _check_put(self: Any, indices: Sequence[Any], values: Any) -> None:
    refuse_if(self.dtype is not values.dtype)
    if any(index is not None and index.dtype in MASKS for index in indices):
        _check_masks(self, indices)
        return
    parts = indexed_parts(self, indices)
    target, given = () if parts is None else parts[0], tuple(values.shape)
    pairs = list(zip(reversed(given), reversed(target), strict=False))
    refuse_if(len(given) > len(target) or not all(_may_expand(size, wanted) for size, wanted in pairs))


def _may_expand(size: Any, wanted: Any) -> bool:
    """Whether a size may broadcast to another one. Sizes that depend on data may."""
    return (
        is_unknown(size) or is_unknown(wanted) or surely(size == wanted) or surely(size == 1) or holds(size == wanted)
    )


def _check_masks(self: Any, indices: Sequence[Any]) -> None:
    """A mask has the sizes of the dimensions that it indexes."""
    dim = 0
    for index in indices:
        masked = len(index.shape) if index is not None and index.dtype in MASKS else 0
        covered = self.shape[dim : dim + masked]
        refuse_if(
            len(covered) < masked
            or not all(holds(a == b) for a, b in zip(index.shape if masked else (), covered, strict=True))
        )
        dim += masked or 1


@shape_rule(aten.index_select.default, tags=INDEX)
def index_select(self: Any, dim: int, index: Any) -> TensorMeta:
    shape = tuple(self.shape)
    refuse_if(len(index.shape) > 1)
    dim = wrap_dim(dim, len(shape))
    if not shape:
        refuse_if(not holds(numel(index.shape) == 1))
        return fresh((), self)
    refuse_if(has_zero(shape[dim : dim + 1]) and not holds(numel(index.shape) == 0))
    return fresh((*shape[:dim], index.shape[0] if len(index.shape) else 1, *shape[dim + 1 :]), self)


@shape_rule(aten.gather.default, tags=INDEX)
def gather(self: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> TensorMeta:
    rank = len(self.shape)
    dim = wrap_dim(dim, rank)
    if has_zero(index.shape):  # eager then checks nothing
        return fresh(index.shape, self)
    refuse_if(index.dtype not in (torch.int64, torch.int32) or max(rank, 1) != max(len(index.shape), 1))
    _require_no_larger(index, self, dim)
    _require_elements(self, dim)
    return fresh(index.shape, self)


def _require_no_larger(index: Any, other: Any, dim: int | None) -> None:
    """An index may be larger than a tensor in the dimension `dim` alone."""
    sizes = zip(index.shape, other.shape, strict=False)  # of which a scalar has none
    refuse_if(any(axis != dim and not holds(size <= limit) for axis, (size, limit) in enumerate(sizes)))


def _require_elements(self: Any, dim: int) -> None:
    """Any index into an empty dimension is out of bounds."""
    refuse_if(has_zero(self.shape[dim : dim + 1]))


@with_in_place(
    *overloads("scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add scatter_reduce.two"),
    tags=SCATTER,
)
def scatter(self: Any, dim: int, index: Any, src: Any, *_reduce: Any, **_options: Any) -> TensorMeta:
    dim = wrap_dim(dim, len(self.shape))
    if not has_zero(index.shape):
        refuse_if(max(len(index.shape), 1) != max(len(self.shape), 1))
        refuse_if(hasattr(src, "shape") and max(len(index.shape), 1) != max(len(src.shape), 1))
        _require_no_larger(index, self, dim)
        if hasattr(src, "shape"):
            _require_no_larger(index, src, None)
        _require_elements(self, dim)
    refuse_if(hasattr(src, "dtype") and src.dtype is not self.dtype)
    check_range(self.dtype, src)
    return fresh(self.shape, self)


@with_in_place(*overloads("index_add index_copy index_reduce"), tags=SCATTER)
def index_add(
    self: Any, dim: int, index: Any, source: Any, *_reduce: Any, alpha: Any = 1, **_options: Any
) -> TensorMeta:
    check_range(self.dtype, alpha)
    dim = wrap_dim(dim, len(self.shape))
    refuse_if(0 < len(source.shape) != len(self.shape) > 0)
    if len(source.shape) == len(self.shape) > 0:
        others = [at for at in range(len(self.shape)) if at != dim]
        refuse_if(not all(holds(source.shape[at] == self.shape[at]) for at in others))
        refuse_if(not holds(numel(tuple(index.shape)) == source.shape[dim]))
    return fresh(self.shape, self)


@with_in_place(*overloads("index_fill.int_Scalar index_fill.int_Tensor"), tags=SCATTER)
def index_fill(self: Any, dim: int, index: Any, value: Any) -> TensorMeta:
    wrap_dim(dim, len(self.shape))
    check_range(self.dtype, value)
    return preserved(self)


@with_in_place(*overloads("masked_scatter"), tags=SCATTER)
def masked_scatter(self: Any, mask: Any, source: Any) -> TensorMeta:
    refuse_if(mask.dtype is not torch.bool)
    return fresh(broadcast_shapes(tuple(self.shape), tuple(mask.shape)), self)


@shape_rule(aten.take.default, tags=INDEX)
def take(self: Any, index: Any) -> TensorMeta:
    refuse_if(has_zero(self.shape) and not has_zero(index.shape))
    return fresh(index.shape, self)


@with_in_place(*overloads("put"), tags=SCATTER)
def put(self: Any, index: Any, *_rest: Any, **_options: Any) -> TensorMeta:
    refuse_if(has_zero(self.shape) and not has_zero(index.shape))
    return preserved(self)


@shape_rule(*overloads("_unsafe_masked_index"), tags=INDEX)
def unsafe_masked_index(self: Any, mask: Any, indices: Sequence[Any], fill: Any) -> Any:
    parts = indexed_parts(self, indices)
    if parts is None:
        return NotImplemented
    return fresh(broadcast_shapes(parts[0], tuple(mask.shape)), self)


INDEX_DTYPES = {False: torch.int64, True: torch.int32}
shape_table(
    INDEX,
    {
        "searchsorted.Tensor": lambda sequence, self, *, out_int32=False, **_: fresh(
            self.shape, self, INDEX_DTYPES[out_int32]
        ),
        "searchsorted.Scalar": lambda sequence, self, *, out_int32=False, **_: fresh(
            (), sequence, INDEX_DTYPES[out_int32]
        ),
        "bucketize.Tensor": lambda self, bounds, *, out_int32=False, **_: fresh(
            self.shape, self, INDEX_DTYPES[out_int32]
        ),
        "nonzero_static": lambda self, *, size, **_: fresh((size, len(self.shape)), self, torch.int64),
    },
)
shape_table(
    ("pointwise",),
    {"isin.Tensor_Tensor isin.Tensor_Scalar": lambda self, *_, **__: fresh(self.shape, self, torch.bool)},
)
shape_table(SCATTER, {"_unsafe_masked_index_put_accumulate": lambda self, *_: preserved(self)})
