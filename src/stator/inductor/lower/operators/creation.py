"""Lowerings of operators that create tensors from sizes and numbers, and of copies, casts and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.inductor.lower.builder import LoweringBuilder, dense_like
from stator.inductor.lower.registry import is_read_again, lowerings, lowers
from stator.inductor.lower.tensor import Index, Tensor, cloned
from stator.prims.layout import wrap_dim
from stator.prims.record import TensorMeta
from stator.prims.shape_rules.operands import overloads
from stator.prims.type_promotion import computation_dtype, is_integral
from stator.shapes.expr import Expr, as_expr
from stator.shapes.simplify import simplify, stays_below

from .pointwise import cast, typed_constant
from .views import slice_bounds

aten = torch.ops.aten


def tensor_from_index(
    builder: LoweringBuilder, inner: Callable[[Any, Index], Ref], meta: TensorMeta | None = None
) -> Tensor:
    """A tensor with elements that depend on the index alone, of the shape and dtype of `meta` (default: the node's)."""
    meta = meta or builder.meta
    assert meta is not None
    result = builder.computed(inner, (), meta.shape, meta.dtype, meta.device)
    result.strides = meta.stride
    return result


def filled(builder: LoweringBuilder, value: float | bool, meta: TensorMeta | None = None) -> Tensor:
    dtype = (meta or builder.meta).dtype
    return tensor_from_index(builder, lambda ops, index: typed_constant(ops, value, dtype), meta)


@lowers(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def _empty(builder: LoweringBuilder, *_: Any, **__: Any) -> Any:
    """Zeros, which cost less than memory would. For deterministic algorithms torch's own operator is called, which
    asks in each call whether it must fill the memory."""
    return NotImplemented if torch.are_deterministic_algorithms_enabled() else filled(builder, 0)


@lowers(aten.arange.start, aten.arange.start_step)
def _range(builder: LoweringBuilder, start: float, end: float, step: float = 1, **_: Any) -> Tensor:
    dtype = builder.meta.dtype
    if is_integral(dtype) and isinstance(start, int | Expr) and isinstance(step, int | Expr):
        return tensor_from_index(
            builder,
            lambda ops, index: ops.to_dtype(ops.index_value(index[0] * step + start, torch.int64), dtype),
        )

    def inner(ops: Any, index: Index) -> Ref:
        # eager accumulates in float64, whatever the dtype
        position = ops.to_dtype(ops.index_value(index[0], torch.int64), torch.float64)
        value = ops.add(ops.constant(start, torch.float64), ops.mul(position, ops.constant(step, torch.float64)))
        return ops.to_dtype(ops.to_dtype(value, computation_dtype(dtype)), dtype)

    return tensor_from_index(builder, inner)


# ---- copies


@lowers(aten.clone.default, aten.contiguous.default)
def _copy(builder: LoweringBuilder, x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    strides = builder.meta.stride
    if x.deviates and builder.loop_order(x.shape, x.strides) != builder.loop_order(x.shape, strides):
        strides = x.strides  # a layout that lowering chose survives a clone that only asked for eager's
    return cloned(x, strides, reused=is_read_again(builder.node))


@lowers(aten._to_copy.default)
def _to_copy(builder: LoweringBuilder, x: Tensor, **_: Any) -> Any:
    if builder.meta.device != x.device:
        return NotImplemented
    if builder.meta.dtype is x.dtype:
        return _copy(builder, x)
    result = cast(builder, x, builder.meta.dtype)
    if not result.deviates:
        result.strides = builder.meta.stride
    return result


@lowers(aten.copy.default)
def _copy_over(builder: LoweringBuilder, x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    if source.device != x.device or x.deviates:
        return NotImplemented
    value = builder.pointwise(lambda ops, old, new: ops.to_dtype(new, x.dtype), [x, source], x.dtype)
    value.strides = builder.meta.stride
    return value


# ---- padding


@lowers(aten.constant_pad_nd.default)
def _constant_pad_nd(builder: LoweringBuilder, x: Tensor, pad: Sequence[int], value: float = 0) -> Any:
    before = [0] * x.rank
    shape = list(x.shape)
    for at in range(len(pad) // 2):
        dim = x.rank - 1 - at
        low, high = pad[2 * at], pad[2 * at + 1]
        before[dim] = low
        shape[dim] = shape[dim] + low + high
    if shape == list(x.shape) and not any(before):
        return _copy(builder, x)
    padded = pad_with(builder, x, before, shape, value)
    if not padded.deviates:
        padded.strides = builder.meta.stride
    return padded


def pad_with(builder: LoweringBuilder, x: Tensor, before: Sequence[Any], shape: Sequence[Any], value: float) -> Tensor:
    """Place `x` at `before` in a larger (or cropped) index space with `value` elsewhere. Reads nothing outside of x."""

    def inner(ops: Any, index: Index) -> Ref:
        moved = tuple([at - low for at, low in zip(index, before, strict=True)])
        mask = within_shape(ops, moved, x.shape)
        if mask is None:
            return x.load(ops, moved)
        return ops.masked(mask, lambda: x.load(ops, moved), value, x.dtype)

    if x.resolved() is None and x.heavy:
        builder.realize(x)
    result = builder.computed(inner, [x], shape, x.dtype, x.device)
    if x.deviates:
        result.strides, result.deviates = dense_like(shape, x.sizes.hints(x.strides)), True
    return result


def within_shape(ops: Any, index: Index, shape: Sequence[Any]) -> Ref | None:
    """The condition that an index lies within `shape`; None when the bounds of the index imply it."""
    mask: Ref | None = None
    for at, size in zip(index, shape, strict=True):
        tests: list[tuple[str, Any]] = []
        if as_expr(at).bounds(ops.ranges)[0] < 0:
            tests.append(("ge", 0))
        if not stays_below(as_expr(at), size, ops.ranges):
            tests.append(("lt", size))
        for comparison, limit in tests:
            value = ops.index_value(at, torch.int64)
            test = ops.elementwise(comparison, value, ops.constant(limit, torch.int64))
            mask = test if mask is None else ops.bitwise_and(mask, test)
    return mask


@lowers(aten.slice_scatter.default)
def _slice_scatter(
    builder: LoweringBuilder,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> Tensor:
    dim = wrap_dim(dim, x.rank)
    first, _ = slice_bounds(x.sizes, x.shape[dim], start, end)

    def inner(ops: Any, index: Index) -> Ref:
        distance = index[dim] - first
        moved = (*index[:dim], simplify(distance // step, ops.ranges), *index[dim + 1 :])
        mask = within_shape(ops, moved, source.shape)
        beside = simplify(distance % step, ops.ranges)
        if beside.constant != 0:
            value = ops.index_value(beside, torch.int64)
            on_step = ops.elementwise("eq", value, ops.constant(0, torch.int64))
            mask = on_step if mask is None else ops.bitwise_and(mask, on_step)
        if mask is None:
            return ops.to_dtype(source.load(ops, moved), x.dtype)
        new = ops.to_dtype(ops.masked(mask, lambda: source.load(ops, moved), 0, source.dtype), x.dtype)
        return ops.where(mask, new, x.load(ops, index))

    result = builder.computed(inner, [x, source], x.shape, x.dtype, x.device)
    if not result.deviates:
        result.strides = builder.meta.stride
    return result


lowerings.add_all(
    {
        aten.full.default: lambda builder, size, value, **_: filled(builder, value),
        aten.full_like.default: lambda builder, like, value, **_: filled(builder, value),
        aten.fill.Scalar: lambda builder, x, value: filled(builder, value),
        aten.new_full.default: lambda builder, x, size, value, **_: filled(builder, value),
        aten.scalar_tensor.default: lambda builder, value, **_: filled(builder, value),
        aten.arange.default: lambda builder, end, **_: _range(builder, 0, end),
        torch.ops.prims.convert_element_type.default: lambda builder, x, dtype: cast(builder, x, dtype),
    }
)
lowers(*overloads("zeros zeros_like new_zeros"))(lambda builder, *_, **__: filled(builder, 0))
lowers(*overloads("ones ones_like new_ones"))(lambda builder, *_, **__: filled(builder, 1))
