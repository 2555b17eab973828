"""Shape rules of operators that occur only in training steps: gradients, optimizer steps, gradient scaling.

Gradients of elementwise operators, normalisation and views stand beside these operators, gradients laid out like one
argument in `like_arguments.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import broadcast_shapes, suggested_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.like_arguments import preserved
from stator.prims.shape_rules.operands import elementwise, fresh, overloads, shape_table, unchanged_argument

# ---- losses


# ---- activations


@shape_rule(*overloads("_prelu_kernel_backward"), tags=("pointwise",))
def prelu_backward(grad_output: Any, self: Any, weight: Any) -> tuple[TensorMeta, TensorMeta]:
    operands = (self, weight, grad_output)
    return elementwise(operands, self.dtype), elementwise(operands, weight.dtype)


# ---- normalisation


@shape_rule(*overloads("_fused_rms_norm_backward"), tags=("reduction",))
def fused_rms_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Sequence[Any], rstd: Any, weight: Any, output_mask: Sequence[bool]
) -> tuple[TensorMeta | None, TensorMeta | None]:
    with_weight = output_mask[1] and weight is not None
    return fresh(input.shape, input) if output_mask[0] else None, fresh(weight.shape, weight) if with_weight else None


# ---- resampling and padding


UPSAMPLING = """
    upsample_nearest1d_backward upsample_nearest2d_backward _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward upsample_linear1d_backward upsample_bilinear2d_backward
    upsample_trilinear3d_backward _upsample_bilinear2d_aa_backward
"""
# Operators whose result is contiguous whatever the gradient's format.
CONTIGUOUS_UPSAMPLING = """
    upsample_nearest3d_backward _upsample_nearest_exact3d_backward upsample_bicubic2d_backward
    _upsample_bicubic2d_aa_backward
"""


@shape_rule(*overloads(UPSAMPLING), tags=("scatter",))
def upsample_backward(
    grad_output: Any, output_size: Sequence[Any], input_size: Sequence[Any], *_scales: Any, **_options: Any
) -> TensorMeta:
    shape = tuple(input_size)
    return fresh(shape, grad_output, stride=suggested_strides(tuple(grad_output.shape), grad_output.stride(), shape))


# ---- pooling


# ---- embeddings and segments


# ---- distances


@shape_rule(*overloads("_cdist_backward"), tags=("reduction",))
def cdist_backward(grad: Any, x1: Any, x2: Any, p: float, cdist: Any) -> TensorMeta:
    """The first operand's gradient, with the batch dimensions of both."""
    first, second = tuple(x1.shape), tuple(x2.shape)
    shape = (*broadcast_shapes(first[:-2], second[:-2]), *first[-2:])
    return preserved(x1) if 0 in shape or second[-2] == 0 else fresh(shape, x1)


FUSED = """
    _fused_adam_ _fused_adam_.tensor_lr _fused_adamw_ _fused_adamw_.tensor_lr _fused_sgd_ _fused_sgd_.tensor_lr
    _fused_adagrad_ _fused_adagrad_.tensor_lr
"""


@shape_rule(*overloads(FUSED), tags=("foreach",))
def _step(self: Any, grads: Any, *_lists: Any, **_options: Any) -> None:
    for parameter, gradient in zip(self, grads, strict=True):
        refuse_if(tuple(parameter.shape) != tuple(gradient.shape))


@shape_rule(torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default, tags=("foreach",))
def _unscale(self: Any, found_inf: Any, inv_scale: Any) -> None:
    refuse_if(found_inf.dtype is not torch.float32 or inv_scale.dtype is not torch.float32)


shape_table(
    ("scatter",),
    {
        CONTIGUOUS_UPSAMPLING: lambda grad, output_size, input_size, *_, **__: fresh(input_size, grad),
        "grid_sampler_2d_backward grid_sampler_3d_backward": lambda grad, input, grid, mode, padding, corners, mask: (
            fresh(input.shape, input) if mask[0] else None,
            fresh(grid.shape, grid),
        ),
        "_embedding_bag_dense_backward": lambda grad, indices, bags, sizes, maxima, rows, *_: fresh(
            (rows, grad.shape[1]), grad
        ),
        "_segment_reduce_backward": lambda grad, output, data, *_, **__: fresh(data.shape, data, grad.dtype),
    },
)
shape_table(
    ("index",),
    {
        "_embedding_bag_per_sample_weights_backward": lambda grad, weight, indices, *_: fresh(indices.shape, grad),
        "masked_scatter_backward": lambda grad, mask, sizes: fresh(sizes, grad),
    },
)
shape_table(
    ("pointwise",),
    {"soft_margin_loss_backward": lambda grad, self, target, reduction: elementwise((self, target, grad), self.dtype)},
)
shape_table(("inplace",), {"_amp_update_scale_": lambda self, *_: unchanged_argument(self)})
