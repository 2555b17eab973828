"""Convolutions of single channels, of groups or of single positions under `exact_rounding`, where our kernels have the
operator's bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta
from stator.runtime import depthwise, pointwise, single_positions
from stator.runtime.depthwise import Depthwise, Shape
from stator.runtime.pointwise import Pointwise
from stator.runtime.single_positions import Product, Sizes

from .builder import LoweringBuilder, same_strides
from .exact import exact_lowerings, is_contiguous_float
from .fallback import library_results
from .tensor import Tensor

aten = torch.ops.aten

Kernel = Depthwise | Pointwise | Product


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


def _sizes(builder: LoweringBuilder, x: Tensor, weight: Tensor, rest: Sequence[Any]) -> Sizes | None:
    """The same of images of one position; None where it is none of these, or in a format that is not compared."""
    stride, padding, dilation, transposed, _, groups = rest
    ones = {*x.shape[2:], *weight.shape[2:], *stride, *dilation, groups} == {1}
    if x.rank != 4 or not ones or any(padding) or transposed:
        return None
    metas = [node.meta["val"] for node in builder.node.all_input_nodes]
    if not all(tuple(meta.stride) == contiguous_strides(meta.shape) for meta in metas):
        return None  # strides of one position may say another format to ATen
    return Sizes(x.shape[0], x.shape[1], weight.shape[0]) if are_contiguous_floats(x, weight) else None


def _agreeing(what: str, shape: Shape) -> Depthwise | Pointwise | None:
    of_points = shape.width == shape.channels and shape.kernel == (1, 1)
    return pointwise.agreeing(what, shape) if of_points else depthwise.agreeing(what, shape)


def are_contiguous_floats(*parts: Tensor) -> bool:
    return all(map(is_contiguous_float, parts))


def _call(builder: LoweringBuilder, kernel: Kernel, given: Sequence[Tensor], meta: TensorMeta) -> Tensor:
    arguments = [builder.argument(part, contiguous_strides(part.shape)) for part in given]
    return builder.extern(kernel, arguments, {}, [meta], style="out")[0]  # type: ignore[return-value]


def _is_contiguous(meta: TensorMeta) -> bool:
    return same_strides(meta.shape, meta.stride, contiguous_strides(meta.shape))


@exact_lowerings.register(aten.convolution.default)
def _convolution(builder: LoweringBuilder, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    given = [x, weight] if bias is None else [x, weight, bias]
    if not _is_contiguous(builder.meta) or not are_contiguous_floats(*given):
        return NotImplemented
    sizes = _sizes(builder, x, weight, rest)
    shape = None if bias is not None else _shape(x, weight, rest)
    kernel: Kernel | None = None
    if sizes is not None:
        kernel = single_positions.agreeing("forward" if bias is None else "biased", sizes)
    elif shape is not None:
        kernel = _agreeing("forward", shape)
    return NotImplemented if kernel is None else _call(builder, kernel, given, builder.meta)


@exact_lowerings.register(aten.convolution_backward.default)
def _convolution_backward(
    builder: LoweringBuilder, grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *more: Any
) -> Any:
    *rest, wanted = more
    metas = [meta if index_wanted else None for meta, index_wanted in zip(builder.meta, wanted, strict=True)]
    if not are_contiguous_floats(grad, x, weight) or not all(meta is None or _is_contiguous(meta) for meta in metas):
        return NotImplemented
    kernels = _of_gradients(builder, x, weight, rest, wanted)
    if not any(kernels):
        return NotImplemented
    found: list[Any] = [None, None, None]
    for index, (kernel, given) in enumerate(zip(kernels, ([grad, weight], [grad, x], [grad]), strict=True)):
        if kernel is not None:
            found[index] = _call(builder, kernel, given, metas[index])  # type: ignore[arg-type]
    left = [index_wanted and kernel is None for index_wanted, kernel in zip(wanted, kernels, strict=True)]
    if any(left):
        arguments = [builder.argument(part, contiguous_strides(part.shape)) for part in (grad, x, weight)]
        remaining = tuple(meta if index_left else None for meta, index_left in zip(metas, left, strict=True))
        called = library_results(
            builder, aten.convolution_backward.default, [*arguments, bias_sizes, *rest, left], {}, remaining
        )
        found = [result if result is not None else other for result, other in zip(found, called, strict=True)]
    return found


def _of_gradients(
    builder: LoweringBuilder, x: Tensor, weight: Tensor, rest: Sequence[Any], wanted: Sequence[bool]
) -> list[Kernel | None]:
    """What computes the gradients of x, the weight and the bias; None where the operator has to, or nobody wants it."""
    sizes, whats = _sizes(builder, x, weight, rest), ("data", "weight", "bias")
    pairs = list(zip(whats, wanted, strict=True))
    if sizes is not None:
        asked = (wanted[0], wanted[1], wanted[2])
        return [single_positions.agreeing(what, sizes, asked) if one else None for what, one in pairs]
    shape = _shape(x, weight, rest)
    if shape is None or wanted[2]:
        return [None, None, None]
    return [_agreeing(what, shape) if one else None for what, one in pairs]
