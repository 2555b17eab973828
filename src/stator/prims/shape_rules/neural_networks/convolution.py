"""Shape rules of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import (
    Sizes,
    channels_last_strides,
    contiguous_strides,
    holds,
    is_channels_last,
    is_contiguous,
    numel,
    strides_like_channels_last,
)
from stator.prims.onednn import HALF_WIDTH, onednn_enabled
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.operands import overloads

aten = torch.ops.aten
CONV = ("conv",)


def per_spatial_dim(value: Any, rank: int) -> Sequence[Any]:
    """Return one value per spatial dimension; a list of one value serves all."""
    if not isinstance(value, (tuple, list)):
        return (value,) * rank
    return value if len(value) == rank else (value[0],) * rank


def convolved_shape(
    shape: Sizes,
    weight: Sizes,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
) -> Sizes:
    """Return the sizes (batch, out channels, spatial...) of a convolution's result. Spatial sizes are (n + 2p - d(k -
    1) - 1) // s + 1; transposed, (n - 1)s - 2p + d(k - 1) + output padding + 1."""
    rank = len(shape) - 2
    spatial = []
    for i in range(rank):
        n, k = shape[i + 2], weight[i + 2]
        s, p, d = stride[i], padding[i], dilation[i]
        if transposed:
            size = (n - 1) * s - 2 * p + d * (k - 1) + output_padding[i] + 1
        else:
            size = (n + 2 * p - d * (k - 1) - 1) // s + 1
            refuse_if(not holds(n + 2 * p >= d * (k - 1) + 1))
        refuse_if(not holds(size >= 0))
        spatial.append(size)
    channels = weight[1] * groups if transposed else weight[0]
    return (shape[0], channels, *spatial)


def check_convolution(shape: Sizes, weight: Sizes, bias: Any, transposed: bool, groups: Any) -> None:
    refuse_if(len(shape) != len(weight))
    expected = weight[0] if transposed else weight[1] * groups
    refuse_if(not holds(shape[1] == expected) or (not transposed and weight[0] % groups != 0))
    out_channels = weight[1] * groups if transposed else weight[0]
    refuse_if(bias is not None and tuple(bias.shape) != (out_channels,))


@shape_rule(aten.convolution.default, *overloads("_convolution"), tags=CONV)
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
    *_flags: bool,
) -> TensorMeta:
    shape, kernel = tuple(input.shape), tuple(weight.shape)
    check_convolution(shape, kernel, bias, transposed, groups)
    refuse_if(input.dtype is not weight.dtype or (bias is not None and bias.dtype is not input.dtype))
    refuse_if(any(amount < 0 for amount in padding) or any(amount <= 0 for amount in dilation))
    rank = len(shape) - 2
    result = convolved_shape(
        shape,
        kernel,
        per_spatial_dim(stride, rank),
        per_spatial_dim(padding, rank),
        per_spatial_dim(dilation, rank),
        transposed,
        per_spatial_dim(output_padding, rank),
        groups,
    )
    return TensorMeta(
        result,
        convolved_strides(input, weight, result, (stride, dilation, transposed, output_padding, groups)),
        input.dtype,
        input.device,
    )


def by_onednn(
    input: Any, weight: Any, stride: Any, dilation: Any, transposed: bool, output_padding: Any, groups: Any
) -> bool:
    """Whether eager computes a convolution on the CPU by oneDNN; a transcription of ATen's choice of backend."""
    if not onednn_enabled():
        return False
    rank = len(input.shape) - 2
    steps = per_spatial_dim(stride, rank)
    if transposed and any(pad >= step for pad, step in zip(per_spatial_dim(output_padding, rank), steps, strict=True)):
        return False
    if input.dtype in HALF_WIDTH:
        return HALF_WIDTH[input.dtype]()
    if input.dtype is not torch.float32:
        return False
    shape, kernel = tuple(input.shape), tuple(weight.shape)
    pointwise = kernel[-1] == 1 and kernel[-2] == 1 and all(step == 1 for step in steps)
    if (
        pointwise
        and all(step == 1 for step in per_spatial_dim(dilation, rank))
        and shape[0] < 16
        and torch.get_num_threads() == 1
    ):
        return False
    return bool(groups > 1 or (kernel[-1] > 3 and kernel[-2] > 3) or shape[0] > 1 or numel(shape[:4]) > 20480)


def convolved_strides(input: Any, weight: Any, result: Sizes, options: tuple[Any, ...]) -> Sizes:
    """Return channels-last strides if the input or the weight suggests them, as the backends of 2-d and 3-d
    convolutions do, except eager's own 3-d ones on the CPU. options: those of `by_onednn`."""
    if len(result) == 3:  # computed as a 2-d convolution of height 1 of the contiguous input
        by_weight, by_input = (
            strides_like_channels_last(*with_height_one(tuple(one.shape), one.stride())) for one in (weight, input)
        )
        if not by_weight and not (by_input and is_contiguous(tuple(input.shape), input.stride())):
            return contiguous_strides(result)
        image = channels_last_strides((*result[:2], 1, result[2]))
        return (image[0], image[1], image[3])
    for tensor in (input, weight):
        if strides_like_channels_last(tuple(tensor.shape), tensor.stride()):
            if len(result) == 5 and input.device.type == "cpu" and not by_onednn(input, weight, *options):
                break
            return channels_last_strides(result)
    return contiguous_strides(result)


def with_height_one(shape: Sizes, strides: Sizes) -> tuple[Sizes, Sizes]:
    """Insert a dimension of one before the last."""
    return (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])


@shape_rule(aten.convolution_backward.default, tags=CONV)
def convolution_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: Sequence[Any] | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    output_mask: Sequence[bool],
) -> tuple[TensorMeta | None, ...]:
    options = (stride, dilation, transposed, output_padding, groups)

    def like(tensor: Any) -> TensorMeta:
        shape = tuple(tensor.shape)
        strides = convolved_strides(input, weight, shape, options)
        dilated = not transposed and any(step != 1 for step in per_spatial_dim(dilation, len(shape) - 2))
        in_both = len(shape) == 4 and (shape[1] == 1 or (shape[2] == 1 and shape[3] == 1))
        if tensor is weight and in_both and not dilated and strides[1] == 1:
            # A kernel of one element or one channel is in both formats: eager's own convolutions do not convert it.
            # Where sizes are symbols, the choice of backend is not asked for: the elements lie at the same places.
            own, symbolic = weight.stride(), torch.SymInt in map(type, input.shape)
            on_cpu = input.device.type == "cpu" and is_channels_last(shape, own)
            if on_cpu and (symbolic or not by_onednn(input, weight, *options)):
                strides = own
        return TensorMeta(shape, strides, tensor.dtype, tensor.device)

    bias = None
    if output_mask[2]:
        shape = (grad_output.shape[1],) if bias_sizes is None else tuple(bias_sizes)
        bias = TensorMeta(shape, contiguous_strides(shape), grad_output.dtype, grad_output.device)
    return (like(input) if output_mask[0] else None, like(weight) if output_mask[1] else None, bias)
