"""The lowering of the gradients of convolutions: library calls in the memory format that suits them, and loops for the
weights of depthwise kernels, which the library takes ten to a hundred times as long for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.prims.layout import channels_last_strides
from stator.prims.record import TensorMeta
from stator.shapes.expr import Symbol

from .builder import Builder, linear, same_strides
from .creation import pad_with
from .fallback import library_results
from .heuristics import MAX_ACCUMULATORS, SMALL_DEPTHWISE
from .reductions import reduce
from .registry import lowers
from .tensor import Computed, Stored, Tensor

aten = torch.ops.aten

_OUTER = tuple(Symbol(f"i{at}") for at in range(2))
_REDUCED = tuple(Symbol(f"r{at}") for at in range(3))


@lowers(aten.convolution_backward.default)
def _convolution_backward(
    builder: Builder,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """Gradients of x [N, C, H, W], of the weight, and of the bias; None where not `wanted`."""
    if transposed or not wanted[1] or not _is_depthwise(grad, x, weight, groups):
        return NotImplemented
    if math.prod(weight.shape[2:]) <= SMALL_DEPTHWISE and not (_is_channels_last(grad) and _is_channels_last(x)):
        return NotImplemented
    grad = in_format(builder, grad, channels_last_strides(grad.shape))
    x = in_format(builder, x, channels_last_strides(x.shape))
    rest = [bias_sizes, stride, padding, dilation, transposed, output_padding, groups]
    of_x = _by_library(builder, grad, x, weight, rest) if wanted[0] else None
    of_weight = _of_depthwise_weight(builder, grad, x, stride, padding, dilation)
    return [of_x, of_weight, _of_bias(builder, grad) if wanted[2] else None]


def _is_depthwise(grad: Tensor, x: Tensor, weight: Tensor, groups: int) -> bool:
    """One kernel of a few taps for each channel, in the formats that loops are made for."""
    plain = all(tensor.dtype is torch.float32 and tensor.device.type == "cpu" for tensor in (grad, x, weight))
    if x.rank != 4 or not plain or 0 in grad.shape or 0 in x.shape:
        return False
    channels = x.shape[1]
    taps = weight.shape[2:]
    return groups == channels == weight.shape[0] > 1 and weight.shape[1] == 1 and taps[1] <= MAX_ACCUMULATORS


def _is_channels_last(x: Tensor) -> bool:
    planned = x.planned()
    return planned is not None and same_strides(x.shape, planned[0], channels_last_strides(x.shape))


def _by_library(builder: Builder, grad: Tensor, x: Tensor, weight: Tensor, rest: Sequence[Any]) -> Tensor:
    """The gradient of x, in the format of x."""
    meta: TensorMeta = builder.meta[0]
    weight_strides = builder.node.args[2].meta["val"].stride
    args = [builder.argument(grad), builder.argument(x), builder.argument(weight, weight_strides)]
    promised = channels_last_strides(meta.shape)
    metas = (TensorMeta(meta.shape, promised, meta.dtype, meta.device), None, None)
    result = library_results(
        builder, aten.convolution_backward.default, [*args, *rest, [True, False, False]], {}, metas
    )[0]
    result.deviates = not same_strides(meta.shape, promised, meta.stride)
    return result


def _of_bias(builder: Builder, grad: Tensor) -> Tensor:
    return reduce(builder, "sum", grad, (0, 2, 3), grad.dtype, keepdim=False)


def _of_depthwise_weight(
    builder: Builder, grad: Tensor, x: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """d[c, 0, i, j] = sum over n, y, z of grad[n, c, y, z] * x[n, c, y * stride + i * dilation - padding, ...].

    One pass over the data has an accumulator for each tap, or for each tap of a row of the kernel; lanes are channels.
    """
    meta: TensorMeta = builder.meta[1]
    batch, channels, *out = grad.shape
    if any(padding):
        shape = (batch, channels, *(size + 2 * pad for size, pad in zip(x.shape[2:], padding, strict=True)))
        x = pad_with(builder, x, (0, 0, *padding), shape, 0.0)
        builder.materialize(x, channels_last_strides(shape))
    rows, columns = meta.shape[2:]
    whole = rows * columns <= MAX_ACCUMULATORS
    target = builder.new_buffer(meta.shape, meta.stride, meta.dtype, meta.device)
    memory: Stored = target.source  # type: ignore[assignment]
    channel = _OUTER[0]
    batch_at, y, z = _REDUCED
    taps = [(row, column) for row in (range(rows) if whole else (_OUTER[1],)) for column in range(columns)]

    def body(ops: Any) -> None:
        given = grad.load(ops, (batch_at, channel, y, z))
        sums: list[Ref] = []
        for row, column in taps:
            at = (y * stride[0] + row * dilation[0], z * stride[1] + column * dilation[1])
            sums.append(ops.reduce("sum", ops.mul(given, x.load(ops, (batch_at, channel, *at)))))
        for (row, column), total in zip(taps, sums, strict=True):
            ops.store(memory.buffer, linear(memory, (channel, 0, row, column)), total)

    loops, ranges = (_OUTER[:1], (channels,)) if whole else (_OUTER, (channels, rows))
    frozen = builder.freeze(body, loops, ranges, _REDUCED, (batch, *out))
    builder.emit((memory.buffer,), frozen, grad.work | x.work)
    return target


def in_format(builder: Builder, x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor in memory with these strides: itself where it is or can be stored so, else a copy."""
    planned = x.planned()
    if planned is not None and same_strides(x.shape, planned[0], strides):
        builder.realize(x.root)
        if x.resolved() is not None:
            return x
    if isinstance(x.source, Computed):
        builder.argument(x, strides)
        return x
    return builder.copy(x, strides)
