"""Lowerings of gathers and scatters: loads and stores at positions that tensors hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.inductor.devices import traits_of
from stator.inductor.loops.body import Ref
from stator.inductor.loops.vocabulary import ATOMIC_STORES
from stator.inductor.lower.builder import LoweringBuilder, dense_like, linear, loop_variables
from stator.inductor.lower.heuristics import LARGE_TABLE
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Index, Stored, Strides, Tensor
from stator.inductor.sizes import Sizes, product
from stator.prims.layout import contiguous_strides, same_strides, wrap_dim
from stator.prims.type_promotion import computation_dtype

from .library import is_overwritable
from .pointwise import cast, elementwise, typed_constant
from .reductions import rounds_each_product
from .views import expand, reshape

aten = torch.ops.aten
_INDEX_DTYPES = (torch.int64, torch.int32)


def _source(builder: LoweringBuilder, x: Tensor, results: Any) -> Tensor:
    """The source of a gather of so many results: stored in memory, unless its elements are trivial to compute anywhere
    or few are wanted."""
    few = builder.sizes.hint(results) * traits_of(x.device).lazy_gather
    if x.resolved() is None and (x.heavy or len(x.work) > 1) and not 0 < few < builder.sizes.hint(x.numel):
        builder.realize(x)
    return x


@lowers(aten.embedding.default)
def _embedding(
    builder: LoweringBuilder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    return _rows(builder, weight, 0, indices)


@lowers(aten.index_select.default)
def _index_select(builder: LoweringBuilder, x: Tensor, dim: int, indices: Tensor) -> Any:
    if x.rank == 0 or indices.rank != 1:
        return NotImplemented
    return _rows(builder, x, wrap_dim(dim, x.rank), indices)


def _rows(builder: LoweringBuilder, x: Tensor, dim: int, indices: Tensor) -> Any:
    """`x` with dimension `dim` replaced by the dimensions of `indices`."""
    if indices.dtype not in _INDEX_DTYPES:
        return NotImplemented
    x = _source(builder, x, product((indices.numel, *x.shape[:dim], *x.shape[dim + 1 :])))

    def inner(ops: Any, index: Index) -> Ref:
        at = indices.load(ops, index[dim : dim + indices.rank])
        row = ops.indirect(at, x.shape[dim], wraps=False)
        return x.load(ops, (*index[:dim], row, *index[dim + indices.rank :]))

    shape = (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :])
    result = builder.computed(inner, [x, indices], shape, x.dtype, x.device, heavy=True)
    result.strides, result.deviates = builder.meta.stride, False
    return result


@lowers(aten.gather.default)
def _gather(builder: LoweringBuilder, x: Tensor, dim: int, indices: Tensor, *, sparse_grad: bool = False) -> Any:
    shape = indices.shape
    if indices.numel == 0:  # for empty indices, eager checks neither dtype nor rank
        return builder.pointwise(lambda ops, _: typed_constant(ops, 0, x.dtype), [indices], x.dtype)
    if indices.dtype not in _INDEX_DTYPES:
        return NotImplemented
    x, indices = _ranked(x), _ranked(indices)
    dim = wrap_dim(dim, x.rank)
    x = _source(builder, x, indices.numel)

    def inner(ops: Any, index: Index) -> Ref:
        at = ops.indirect(indices.load(ops, index), x.shape[dim], wraps=False)
        return x.load(ops, (*index[:dim], at, *index[dim + 1 :]))

    result = builder.computed(inner, [x, indices], indices.shape, x.dtype, x.device, heavy=True)
    if result.shape != shape:
        return reshape(result, shape)
    result.strides, result.deviates = builder.meta.stride, False
    return result


def _strides_like(x: Tensor, shape: Sequence[Any], usual: Strides) -> Strides:
    """The strides of a result with x's dimensions, of other sizes, in memory in x's order."""
    steps = x.sizes.hints(x.strides)
    return dense_like(shape, steps) if min(steps) > 0 else usual


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(builder: LoweringBuilder, x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    plan = _advanced(builder, x, indices)
    if plan is None:
        return NotImplemented
    x = _source(builder, x, product(plan.full))

    def inner(ops: Any, index: Index) -> Ref:
        return x.load(ops, plan.where(ops, index))

    result = builder.computed(inner, [x, *plan.tensors], plan.full, x.dtype, x.device, heavy=True)
    result.strides = _strides_like(x, plan.full, builder.meta.stride) if plan.is_along_one() else builder.meta.stride
    result.deviates = not same_strides(plan.full, result.strides, builder.meta.stride)
    return result


@dataclass(frozen=True, slots=True)
class _AdvancedIndex:
    """Index tensors broadcast together, of the dimensions `dims` of a tensor of shape `indexed`. full: the shape of the
    result, in which theirs begins at `first`."""

    tensors: list[Tensor]
    dims: list[int]
    indexed: Sizes
    full: Sizes
    first: int

    def is_along_one(self) -> bool:
        return self.dims == [self.first] and self.tensors[0].rank == 1

    def where(self, ops: Any, index: Index) -> Index:
        """The position in the indexed tensor of an element of the result."""
        end = self.first + self.tensors[0].rank
        others = iter((*index[: self.first], *index[end:]))
        found: list[Any] = [0 if dim in self.dims else next(others) for dim in range(len(self.indexed))]
        for dim, tensor in zip(self.dims, self.tensors, strict=True):
            at = tensor.load(ops, index[self.first : end])
            found[dim] = ops.indirect(at, self.indexed[dim], wraps=True)
        return tuple(found)


def _advanced(builder: LoweringBuilder, x: Tensor, indices: Sequence[Tensor | None]) -> _AdvancedIndex | None:
    """None for index tensors that kernels do not take."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    if not tensors or any(tensor.dtype not in _INDEX_DTYPES for tensor in tensors):
        return None
    shape = builder.broadcast(tensor.shape for tensor in tensors)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if adjacent else 0
    rest = [size for dim, size in enumerate(x.shape) if dim not in dims]
    full = (*rest[:first], *shape, *rest[first:])
    return _AdvancedIndex([expand(tensor, shape) for tensor in tensors], dims, x.shape, full, first)


# ---- scatters: a copy, then stores into it

# a sum of booleans is their `or`, a product their `and`
_MODES_OF_BOOL: dict[str | None, str] = {"add": "max", "mul": "min"}

Where = Callable[[Any, Index], Index]
Values = Callable[[Any, Index], Ref]


def scatter_into(
    builder: LoweringBuilder,
    x: Tensor,
    shape: Sequence[int],
    where: Where,
    value: Values,
    mode: str | None,
    work: frozenset[str],
    in_place: bool = False,
    strides: Strides | None = None,
) -> Any:
    """A copy of `x` (or itself) into which `value(ops, index)` is stored at `where(ops, index)` for all of `shape`.

    `strides`: of the copy, if not eager's.
    Half floats are added and multiplied in float32. NotImplemented for a mode that this device or dtype lacks. Also for
    deterministic algorithms, because additions come in any order here; torch's own fix the order, or raise.
    """
    if torch.are_deterministic_algorithms_enabled():
        return NotImplemented
    dtype = x.dtype
    if dtype is torch.bool:
        mode = _MODES_OF_BOOL.get(mode, mode)
    working = computation_dtype(x.dtype) if mode in ("add", "mul") else x.dtype
    if mode not in (None, "last") and x.device.type != "cpu" and (mode, working) not in ATOMIC_STORES:
        return NotImplemented
    if strides is None:
        strides = builder.meta.stride if builder.meta.shape == x.shape else contiguous_strides(x.shape)
    if not (in_place and working is x.dtype and x.strides == tuple(strides)):
        x = builder.copy(cast(builder, x, working), strides)
    target = x
    target.deviates = builder.meta.shape == x.shape and not same_strides(x.shape, strides, builder.meta.stride)
    memory: Stored = target.source  # type: ignore[assignment]
    order = builder.loop_order(tuple(shape), contiguous_strides(tuple(shape)))
    variables, index = loop_variables(order, shape)

    def body(ops: Any) -> None:
        stored = ops.to_dtype(value(ops, index), working)
        ops.store(memory.buffer, linear(memory, where(ops, index)), stored, mode)

    frozen = builder.freeze(body, variables, tuple(shape[dim] for dim in order))
    builder.emit((memory.buffer,), frozen, work)
    return cast(builder, target, dtype)


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(
    builder: LoweringBuilder, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    if len(indices) == 1 and _is_mask_of(indices[0], x):
        return _masked_assignment(builder, x, indices[0], values, accumulate)
    plan = _advanced(builder, x, indices)
    if plan is None:
        return NotImplemented
    if accumulate and x.sizes.hint(x.numel) >= LARGE_TABLE * x.sizes.hint(values.numel):
        builder.realize(values)
    spread = expand(cast(builder, values, x.dtype), plan.full)
    mode = "add" if accumulate else "last" if plan.tensors[0].numel not in (0, 1) else None
    along_one = accumulate and plan.is_along_one() and values.shape == plan.full
    strides = _strides_like(values, x.shape, builder.meta.stride) if along_one else None
    overwritable = is_overwritable(builder, x)
    return scatter_into(builder, x, plan.full, plan.where, spread.load, mode, spread.work, overwritable, strides)


def _is_mask_of(index: Tensor | None, x: Tensor) -> bool:
    return index is not None and index.dtype is torch.bool and index.shape == x.shape[: index.rank]


def _masked_assignment(builder: LoweringBuilder, x: Tensor, mask: Any, values: Tensor, accumulate: bool) -> Any:
    """`x[mask] = values` (or `+=`), where the mask covers the leading dimensions and every selected element gets equal
    values. NotImplemented where the values depend on the number of selected elements."""
    rest = x.shape[mask.rank :]
    if values.rank > len(rest):
        leading = values.shape[: values.rank - len(rest)]
        if any(x.sizes.hint(size) != 1 or x.sizes.decide("!=", size, 1) for size in leading):
            return NotImplemented
        values = reshape(values, values.shape[values.rank - len(rest) :])
    spread = reshape(mask, (*mask.shape, *([1] * len(rest))))
    working = computation_dtype(x.dtype)

    def assigned(ops: Any, old: Ref, test: Ref, new: Ref) -> Ref:
        if accumulate:
            new = ops.to_dtype(ops.add(ops.to_dtype(old, working), ops.to_dtype(new, working)), x.dtype)
        return ops.where(test, new, old)

    return builder.pointwise(assigned, [x, spread, cast(builder, values, x.dtype)], x.dtype)


# eager's names of reductions, by the mode of stores
_MODES = {
    "sum": "add",
    "add": "add",
    "mean": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}


def _identity(reduce: str, dtype: torch.dtype) -> float | int:
    if dtype is torch.bool:
        return reduce in ("amin", "prod")
    if reduce in ("amax", "amin"):
        if dtype.is_floating_point:
            return -math.inf if reduce == "amax" else math.inf
        limits = torch.iinfo(dtype)
        return limits.min if reduce == "amax" else limits.max
    return 1 if reduce == "prod" else 0


def _reduced(
    builder: LoweringBuilder,
    x: Tensor,
    shape: Sequence[int],
    where: Where,
    value: Values,
    work: frozenset[str],
    reduce: str,
    include_self: bool = True,
) -> Any:
    """Scatter with a reduction. Without `include_self`, the written elements start from the reduction's identity."""
    dtype = x.dtype
    if dtype is torch.bool and reduce == "mean":
        return NotImplemented
    if not include_self:
        start = _identity(reduce, dtype)
        x = scatter_into(builder, x, shape, where, lambda ops, index: typed_constant(ops, start, dtype), "last", work)
        if x is NotImplemented:
            return NotImplemented
    result = scatter_into(builder, x, shape, where, value, _MODES[reduce], work)
    if reduce != "mean" or result is NotImplemented:
        return result
    working = computation_dtype(dtype)
    begin = 1 if include_self else 0
    initial = builder.pointwise(lambda ops, old: ops.constant(begin, working), [x], working)
    counts = scatter_into(builder, initial, shape, where, lambda ops, index: ops.constant(1, working), "add", work)

    def divided(ops: Any, total: Ref, count: Ref) -> Ref:
        count = ops.maximum(count, ops.constant(1, working))
        quotient = ops.elementwise(
            "div" if working.is_floating_point else "floor_div", ops.to_dtype(total, working), count
        )
        return ops.to_dtype(quotient, dtype)

    return builder.pointwise(divided, [result, counts], dtype)


def _elementwise_places(x: Tensor, dim: int, indices: Tensor) -> Where:
    """Indexes `dim` by the index tensor, and the other dimensions by the loops."""

    def where(ops: Any, index: Index) -> Index:
        at = ops.indirect(indices.load(ops, index), x.shape[dim], wraps=False)
        return (*index[:dim], at, *index[dim + 1 :])

    return where


def _slice_places(x: Tensor, dim: int, indices: Tensor) -> Where:
    """Indexes `dim` by a vector of indices, for whole slices across `dim`."""

    def where(ops: Any, index: Index) -> Index:
        at = ops.indirect(indices.load(ops, (index[dim],)), x.shape[dim], wraps=False)
        return (*index[:dim], at, *index[dim + 1 :])

    return where


def _ranked(x: Any) -> Any:
    """A zero-dim tensor as a vector of one element."""
    return reshape(x, (1,)) if isinstance(x, Tensor) and x.rank == 0 else x


@lowers(aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce, aten.scatter_reduce.two)
def _scatter(
    builder: LoweringBuilder,
    x: Tensor,
    dim: int,
    indices: Tensor,
    source: Any,
    reduce: str | None = None,
    include_self: bool = True,
) -> Any:
    if indices.dtype not in _INDEX_DTYPES:
        return NotImplemented
    shape = x.shape
    x, indices, source = _ranked(x), _ranked(indices), _ranked(source)
    where = _elementwise_places(x, wrap_dim(dim, x.rank), indices)
    dtype, work = x.dtype, indices.work
    if isinstance(source, Tensor):
        value, work = source.load, work | source.work
    else:

        def value(ops: Any, index: Index) -> Ref:
            return typed_constant(ops, source, dtype)

    if reduce is None:
        result = scatter_into(builder, x, indices.shape, where, value, "last", work)
    else:
        result = _reduced(builder, x, indices.shape, where, value, work, reduce, include_self)
    return result if result is NotImplemented else reshape(result, shape)


@lowers(aten.scatter_add.default)
def _scatter_add(builder: LoweringBuilder, x: Tensor, dim: int, indices: Tensor, source: Tensor) -> Any:
    return _scatter(builder, x, dim, indices, source, "sum")


@lowers(aten.index_copy.default, aten.index_reduce.default)
def _slices(
    builder: LoweringBuilder,
    x: Tensor,
    dim: int,
    indices: Tensor,
    source: Tensor,
    reduce: str | None = None,
    include_self: bool = True,
) -> Any:
    if indices.dtype not in _INDEX_DTYPES or (reduce == "prod" and rounds_each_product(x.dtype, x)):
        return NotImplemented
    if any(x.sizes.decide("==", size, 0) for size in x.shape):  # eager does not look at the index
        return NotImplemented
    shape = x.shape
    x, indices, source = _ranked(x), _ranked(indices), _ranked(source)
    dim = wrap_dim(dim, x.rank)
    where = _slice_places(x, dim, indices)
    full = (*x.shape[:dim], indices.shape[0], *x.shape[dim + 1 :])
    source = expand(source, full)
    work = source.work | indices.work
    if reduce is None:
        result = scatter_into(builder, x, full, where, source.load, "last", work)
    else:
        result = _reduced(builder, x, full, where, source.load, work, reduce, include_self)
    return result if result is NotImplemented else reshape(result, shape)


@lowers(aten.index_add.default)
def _index_add(
    builder: LoweringBuilder, x: Tensor, dim: int, indices: Tensor, source: Tensor, *, alpha: float = 1
) -> Any:
    if alpha != 1:
        source = elementwise(builder, lambda ops, value, factor: ops.mul(value, factor), [source, alpha], dtype=x.dtype)
    return _slices(builder, x, dim, indices, source, "sum")


@lowers(aten.put.default)
def _put(builder: LoweringBuilder, x: Tensor, indices: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """Indexes the flattened tensor."""
    if indices.dtype is not torch.int64 or not same_strides(x.shape, builder.meta.stride, contiguous_strides(x.shape)):
        return NotImplemented
    flat = reshape(x, (x.numel,))
    places, values = reshape(indices, (indices.numel,)), reshape(source, (indices.numel,))

    def where(ops: Any, index: Index) -> Index:
        return (ops.indirect(places.load(ops, index), x.numel, wraps=True),)

    mode = "add" if accumulate else "last"
    result = scatter_into(builder, flat, (indices.numel,), where, values.load, mode, values.work | places.work)
    return result if result is NotImplemented else reshape(result, x.shape)
