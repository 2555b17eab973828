"""Shape rules of the composite operators that a backend may take whole (`functionalize.KEEPABLE`). All other composites
are traced as the operators that they are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.prims.layout import (
    Sizes,
    broadcast_shapes,
    contiguous_strides,
    equal_sizes,
    is_contiguous,
)
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if

from .neural_networks.convolution import convolution
from .neural_networks.losses import nll_loss2d_forward, nll_loss_forward
from .neural_networks.normalisation import batch_norm_result, check_normalized
from .neural_networks.upsampling import resized
from .operands import common_device, fresh, overloads, shape_table
from .reductions import softmax as softmax_kernel
from .views import unsqueeze

aten = torch.ops.aten


@shape_rule(*overloads("softmax.int log_softmax.int"), tags=("reduction",))
def softmax(self: Any, dim: int, dtype: torch.dtype | None = None) -> TensorMeta:
    return softmax_kernel(self if dtype is None else fresh(self.shape, self, dtype), dim)


def maybe_unbatched(input: Any, weight: Any, *arguments: Any) -> Any:
    """Apply the rule of a convolution to an input that may lack the batch dimension."""
    if input.dtype.is_complex:  # computed as three real convolutions
        return NotImplemented
    if len(input.shape) != len(weight.shape) - 1:
        return convolution(input, weight, *arguments)
    result = convolution(TensorFromMeta(unsqueeze(input, 0)), weight, *arguments)
    return replace(result, shape=result.shape[1:], stride=result.stride[1:])


class TensorFromMeta:
    """A TensorMeta with a tensor's attributes, for rules that pass an intermediate result on to another rule."""

    __slots__ = ("device", "dtype", "meta", "shape")

    def __init__(self, meta: TensorMeta) -> None:
        self.meta, self.shape, self.dtype, self.device = meta, meta.shape, meta.dtype, meta.device

    def stride(self) -> Sizes:
        return self.meta.stride

    def storage_offset(self) -> Any:
        return self.meta.offset


@shape_rule(*overloads("group_norm"), tags=("reduction",))
def group_norm(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> TensorMeta:
    refuse_if(input.shape[1] % num_groups != 0)
    return batch_norm_result(input)


@shape_rule(*overloads("rms_norm"), tags=("reduction",))
def rms_norm(input: Any, normalized_shape: Sequence[Any], weight: Any = None, eps: float | None = None) -> Any:
    check_normalized(input, normalized_shape, weight, None)
    shape = tuple(input.shape)
    if 0 in shape or not is_contiguous(shape, input.stride()):
        return NotImplemented
    if weight is not None and weight.dtype is not input.dtype:
        return NotImplemented
    return fresh(shape, input)


@shape_rule(*overloads("matmul"), tags=("matmul",))
def matmul(self: Any, other: Any) -> TensorMeta:
    """Vectors count as a row on the left and a column on the right; leading dimensions broadcast."""
    first, second = tuple(self.shape), tuple(other.shape)
    refuse_if(not first or not second or self.dtype is not other.dtype)
    inner = second[0] if len(second) == 1 else second[-2]
    refuse_if(first[-1] != inner)
    rows = first[-2:-1] if len(first) > 1 else ()
    columns = second[-1:] if len(second) > 1 else ()
    shape = (*broadcast_shapes(first[:-2], second[:-2]), *rows, *columns)
    return TensorMeta(shape, contiguous_strides(shape), self.dtype, common_device((self, other)))


@shape_rule(*overloads("cross_entropy_loss"), tags=("reduction",))
def cross_entropy_loss(
    self: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: Any = -100,
    label_smoothing: float = 0.0,
) -> Any:
    if equal_sizes(tuple(self.shape), tuple(target.shape)) or not 0.0 <= label_smoothing <= 1.0:
        return NotImplemented
    loss = nll_loss_forward if len(self.shape) < 3 else nll_loss2d_forward
    return loss(self, target, weight, reduction, ignore_index)[0]


@shape_rule(*overloads("upsample_nearest2d.vec upsample_bilinear2d.vec"), tags=("index",))
def upsample_vector(input: Any, output_size: Sequence[Any] | None, *options: Any) -> TensorMeta:
    """The last argument is the list of scale factors, used if no output size is given."""
    if output_size is None:
        output_size = [math.floor(size * factor) for size, factor in zip(input.shape[2:], options[-1], strict=True)]
    return resized(input, output_size)


shape_table(
    ("conv",),
    {
        "conv1d conv2d conv3d": lambda input, weight, bias=None, stride=(1,), padding=(0,), dilation=(1,), groups=1: (
            maybe_unbatched(input, weight, bias, stride, padding, dilation, False, (0,), groups)
        ),
    },
)
