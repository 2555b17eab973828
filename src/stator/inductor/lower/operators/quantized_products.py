"""Products with a quantized weight, a matrix of bytes or one that loops compute from fewer bytes: of a few rows as sums
of our own, of more rows of bfloat16 by a kernel in tiles. A library needs the matrix in memory, in the dtype of the
rows or in a layout of its own, and making it takes longer: ours read each byte once and convert it in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.inductor.buffers import Layout, View
from stator.inductor.devices import COMPRESSED, traits_of
from stator.inductor.loops.handler import LoopRecorder
from stator.inductor.lower.builder import LoweringBuilder, linear
from stator.inductor.lower.constant_weights import constant_of, constant_tensor, shared_opaque
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Computed, Stored, Tensor
from stator.prims.layout import channels_last_strides, numel, same_strides
from stator.prims.record import TensorMeta
from stator.prims.type_promotion import computation_dtype
from stator.runtime.integer_products import packed_kernel, packed_weight
from stator.runtime.tile_products import has_tiles_for, is_quicker
from stator.runtime.toolchain import float_lanes
from stator.shapes.expr import Symbol
from stator.shapes.simplify import simplify

from .pointwise import cast

aten = torch.ops.aten

# Bytes of rows from which on each of their elements is loaded for several columns at once. Sums are then as many as
# lanes of a vector at most, which is half of the registers.
_NEAREST_CACHE = 32 << 10
_COLUMN, _AT = Symbol("i0"), Symbol("r0")

_by_onednn = torch.ops.onednn.qlinear_pointwise
# oneDNN's options for a result in float32, without an activation
_PLAIN_RESULT: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")


def quantized_product(builder: LoweringBuilder, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """`a @ b + bias` by kernels of our own; None where the library is quicker."""
    planned = b.planned()
    along, across = traits_of(a.device).quantized_rows
    most = along if planned is not None and planned[0][0] == 1 else across
    plain = bias is None or (bias.shape == b.shape[1:] and bias.dtype is a.dtype)
    if not plain or not isinstance(b.root.source, Computed):
        return None
    in_tiles = _in_tiles(builder, a, b, bias)
    if in_tiles is not None or not _has_few_rows(a, b, most) or not _is_compressed(builder, b):
        return in_tiles
    return _sums(builder, a, b, bias, a.dtype)


def _in_tiles(builder: LoweringBuilder, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor | None:
    """Rows of bfloat16 or int8 by int8 weights, whatever the number of rows of later calls."""
    inner, columns = b.shape
    known = isinstance(inner, int) and isinstance(columns, int) and a.device.type == "cpu"
    if not known or not has_tiles_for(inner, columns, a.dtype):
        return None
    weight, rows = _converted_integers(builder, b), builder.sizes.hint(a.shape[0])
    if weight is None or not is_quicker(rows, inner, columns, a.dtype, constant_of(builder, weight) is not None):
        return None
    given = [builder.argument(a, (inner, 1)), weight, *([] if bias is None else [builder.argument(bias, (1,))])]
    dtype = torch.int32 if a.dtype is torch.int8 else a.dtype
    meta = TensorMeta((a.shape[0], columns), (columns, 1), dtype, a.device)
    result: Tensor = library_results(builder, torch.ops.stator.tile_product.default, given, {}, meta)
    return result


def _converted_integers(builder: LoweringBuilder, b: Tensor) -> View | None:
    """The matrix of int8 in memory that `b` converts and does nothing else with, if its columns are contiguous."""
    inner, columns = b.shape
    at, column = Symbol("k"), Symbol("n")
    sizes = builder.sizes
    recorder = LoopRecorder(builder.dtype_of, sizes.ranges((at, column), b.shape), sizes)
    value = recorder.ops[b.load(recorder, (at, column)).position]
    source: Any = value.args[0]
    load = recorder.ops[source.position] if value.name == "to_dtype" else value
    if load.name != "load" or load.dtype is not torch.int8 or load.args[2] is not None:
        return None
    place: Any = load.args[1]
    offset = simplify(recorder.indices[place.position] - at - column * inner, recorder.ranges).constant
    if not isinstance(offset, int):
        return None
    buffer = str(load.args[0])
    return View(buffer, Layout((inner, columns), (1, inner), torch.int8, b.device, offset))


@lowers(aten._int_mm.default)
def _int_mm(builder: LoweringBuilder, a: Tensor, b: Tensor) -> Any:
    """oneDNN lays the matrix out anew in each call: with one row that takes longer than the sums."""
    if a.device.type == "cpu" and _has_few_rows(a, b, 1):
        return _sums(builder, a, b, None, torch.int32)
    return _in_tiles(builder, a, b, None) or NotImplemented


def _has_few_rows(a: Tensor, b: Tensor, most: int) -> bool:
    known = all(isinstance(size, int) and size > 0 for size in (a.shape[0], *b.shape))
    return known and a.shape[0] <= most


def _is_compressed(builder: LoweringBuilder, b: Tensor) -> bool:
    """True for a matrix that is computed from at most half its bytes, and its scales."""
    if b.heavy or not b.reads:
        return False
    layouts = [builder.buffers[name].layout for name in b.reads]
    read = sum(builder.sizes.hint(numel(layout.size)) * layout.dtype.itemsize for layout in layouts)
    return read <= COMPRESSED * b.numel * b.dtype.itemsize


def _sums(builder: LoweringBuilder, a: Tensor, b: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """One loop over the matrix has the sums of all rows, so that each element is converted once. Where sums run along
    memory, it has those of several columns, so that each element of the rows is loaded once for these."""
    rows, (inner, columns), working = a.shape[0], b.shape, computation_dtype(dtype)
    a = cast(builder, a, working)
    builder.realize(a)
    together = _columns_together(rows, inner, columns) if _runs_along_memory(b) else 1
    result = builder.new_buffer((rows, columns), (columns, 1), dtype, a.device)
    memory: Stored = result.source  # type: ignore[assignment]

    def body(ops: Any) -> None:
        for column in [_COLUMN * together + one for one in range(together)]:
            element = ops.to_dtype(b.load(ops, (_AT, column)), working)
            for row in range(rows):
                total = ops.reduce("sum", ops.mul(a.load(ops, (row, _AT)), element))
                if bias is not None:
                    total = ops.add(total, ops.to_dtype(bias.load(ops, (column,)), working))
                ops.store(memory.buffer, linear(memory, (row, column)), ops.to_dtype(total, dtype))

    frozen = builder.freeze(body, (_COLUMN,), (columns // together,), (_AT,), (inner,))
    builder.emit((memory.buffer,), frozen, a.work | b.work)
    return result


def _columns_together(rows: int, inner: int, columns: int) -> int:
    """One where the nearest cache holds all rows beside columns: then these are read as fast one after the other."""
    most = float_lanes() // rows if 4 * rows * inner >= _NEAREST_CACHE else 1
    return next(count for count in (4, 2, 1) if count == 1 or (count <= most and columns % count == 0))


def _runs_along_memory(b: Tensor) -> bool:
    planned = b.planned()
    return planned is not None and planned[0][0] == 1


@lowers(torch.ops.stator.integer_product.default, torch.ops.stator.integer_product.tensor)
def _integer_product(
    builder: LoweringBuilder,
    rows: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
) -> Any:
    constant = constant_tensor(builder, weight)
    if constant is None:
        return NotImplemented
    count = builder.sizes.hint(rows.shape[0])
    packed = shared_opaque(builder, ("integers", weight.resolved()), lambda: packed_weight(constant, count), constant)
    target = _by_onednn.tensor if isinstance(scale, Tensor) else _by_onednn.default
    numbers = [builder.argument(one) if isinstance(one, Tensor) else one for one in (scale, zero_point)]
    given: list[Any] = [builder.argument(rows, (rows.shape[1], 1)), *numbers, packed]
    given += _channels(builder, scales, bias, constant)
    return library_results(builder, target, [*given, *_PLAIN_RESULT], {}, builder.meta)


@lowers(torch.ops.stator.integer_convolution.default)
def _integer_convolution(
    builder: LoweringBuilder,
    images: Tensor,
    scale: float,
    zero_point: int,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Any:
    """In NHWC."""
    constant, factors = constant_tensor(builder, weight), constant_tensor(builder, scales)
    if constant is None or factors is None:
        return NotImplemented
    window, size = (stride, padding, dilation, groups), builder.sizes.hints(images.shape)
    key = ("integers", weight.resolved(), scale, zero_point, tuple(stride), tuple(padding), tuple(dilation), size)
    packed = shared_opaque(
        builder, key, lambda: packed_kernel(constant, factors, scale, zero_point, window, size), constant
    )
    given: list[Any] = [builder.argument(images, channels_last_strides(images.shape)), scale, zero_point, packed]
    given += [*_channels(builder, scales, bias, constant), *window, *_PLAIN_RESULT]
    meta: TensorMeta = builder.meta
    promised = channels_last_strides(meta.shape)
    made = TensorMeta(meta.shape, promised, meta.dtype, meta.device)
    result: Tensor = library_results(builder, torch.ops.onednn.qconv_pointwise.default, given, {}, made)
    result.deviates = not same_strides(meta.shape, promised, meta.stride)
    return result


def _channels(builder: LoweringBuilder, scales: Tensor, bias: Tensor | None, weight: torch.Tensor) -> list[Any]:
    """Scales, zero points and bias of the channels of a result."""
    zeros = torch.zeros(weight.shape[0], dtype=torch.int64)
    shared = shared_opaque(builder, ("zero points", weight.shape[0]), lambda: zeros, zeros)
    return [builder.argument(scales), shared, None if bias is None else builder.argument(bias, (1,))]
