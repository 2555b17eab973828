"""Convolutions of single channels or of groups under `exact_rounding`, where our kernels have the operator's bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta
from stator.runtime.depthwise import Depthwise, Shape, agreeing

from .builder import Builder, same_strides
from .exact import exact_lowerings, is_contiguous_float
from .fallback import library_results
from .tensor import Tensor

aten = torch.ops.aten


def _shape(x: Tensor, weight: Tensor, rest: Sequence[Any]) -> Shape | None:
    """Of `rest`, the arguments of the operators from the stride to the groups; None where it is another convolution."""
    stride, padding, dilation, transposed, _, groups = rest
    if x.rank != 4 or weight.rank != 4 or transposed or not is_contiguous_float(x) or not is_contiguous_float(weight):
        return None
    channels = x.shape[1]
    if any(step != 1 for step in dilation) or (groups > 1 and channels != weight.shape[0]):
        return None
    steps, pads = ((part[0], part[-1]) for part in (stride, padding))
    image, kernel = (x.shape[2], x.shape[3]), (weight.shape[2], weight.shape[3])
    return Shape(x.shape[0], channels, image, kernel, steps, pads, channels // groups, weight.shape[0])


def _call(builder: Builder, kernel: Depthwise, one: Tensor, other: Tensor, meta: TensorMeta) -> Tensor:
    given = [builder.argument(part, contiguous_strides(part.shape)) for part in (one, other)]
    return builder.extern(kernel, given, {}, [meta], style="out")[0]  # type: ignore[return-value]


def _is_contiguous(meta: TensorMeta) -> bool:
    return same_strides(meta.shape, meta.stride, contiguous_strides(meta.shape))


@exact_lowerings.register(aten.convolution.default)
def _convolution(builder: Builder, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    shape = None if bias is not None or not _is_contiguous(builder.meta) else _shape(x, weight, rest)
    kernel = None if shape is None else agreeing("forward", shape)
    return NotImplemented if kernel is None else _call(builder, kernel, x, weight, builder.meta)


@exact_lowerings.register(aten.convolution_backward.default)
def _convolution_backward(
    builder: Builder, grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *more: Any
) -> Any:
    *rest, wanted = more
    metas = [meta if index_wanted else None for meta, index_wanted in zip(builder.meta, wanted, strict=True)]
    if wanted[2] or not is_contiguous_float(grad) or not all(meta is None or _is_contiguous(meta) for meta in metas):
        return NotImplemented
    shape = _shape(x, weight, rest)
    if shape is None:
        return NotImplemented
    found: list[Any] = [None, None, None]
    for index, (what, other) in enumerate((("data", weight), ("weight", x))):
        kernel = agreeing(what, shape) if wanted[index] else None
        if kernel is not None:
            found[index] = _call(builder, kernel, grad, other, metas[index])  # type: ignore[arg-type]
    left = [index_wanted and result is None for index_wanted, result in zip(wanted, found, strict=True)]
    if left == list(wanted):
        return NotImplemented
    if any(left):
        given = [builder.argument(part, contiguous_strides(part.shape)) for part in (grad, x, weight)]
        remaining = tuple(meta if index_left else None for meta, index_left in zip(metas, left, strict=True))
        called = library_results(
            builder, aten.convolution_backward.default, [*given, bias_sizes, *rest, left], {}, remaining
        )
        found = [result if result is not None else other for result, other in zip(found, called, strict=True)]
    return found
