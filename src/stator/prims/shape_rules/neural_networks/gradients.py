"""Shape rules of operators that occur only in gradients: of losses, resampling, padding, pooling, distances.

Gradients of elementwise operators, normalisation and views stand beside these operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.prims.layout import broadcast_shapes, preserved_strides, suggested_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.shape_rules.operands import elementwise, fresh, overloads


def like(tensor: Any) -> TensorMeta:
    """Describe a fresh tensor: the strides of `tensor` if dense, otherwise contiguous."""
    shape = tuple(tensor.shape)
    return fresh(shape, tensor, stride=preserved_strides(shape, tensor.stride()))


def in_format(tensor: Any, of: Any = None) -> TensorMeta:
    """Describe a fresh tensor in the memory format that `of` (by default `tensor`) suggests."""
    shape, source = tuple(tensor.shape), tensor if of is None else of
    return fresh(shape, tensor, stride=suggested_strides(tuple(source.shape), source.stride(), shape))


# ---- losses


@shape_rule(
    *overloads(
        "smooth_l1_loss_backward huber_loss_backward multi_margin_loss_backward multilabel_margin_loss_backward"
    ),
    tags=("pointwise",),
)
def loss_backward(grad_output: Any, self: Any, *_rest: Any) -> TensorMeta:
    return fresh(self.shape, self)


@shape_rule(*overloads("binary_cross_entropy_backward"), tags=("pointwise",))
def binary_cross_entropy_backward(grad_output: Any, self: Any, *_rest: Any) -> TensorMeta:
    return like(self)


@shape_rule(*overloads("soft_margin_loss_backward"), tags=("pointwise",))
def soft_margin_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int) -> TensorMeta:
    return elementwise((self, target, grad_output), self.dtype)


# ---- activations


@shape_rule(*overloads("glu_backward"), tags=("pointwise",))
def glu_backward(grad_output: Any, self: Any, dim: int) -> TensorMeta:
    return fresh(self.shape, self)


@shape_rule(*overloads("log_sigmoid_backward"), tags=("pointwise",))
def log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any) -> TensorMeta:
    return like(grad_output)


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


@shape_rule(*overloads(CONTIGUOUS_UPSAMPLING), tags=("scatter",))
def contiguous_upsample_backward(
    grad_output: Any, output_size: Sequence[Any], input_size: Sequence[Any], *_scales: Any, **_options: Any
) -> TensorMeta:
    return fresh(input_size, grad_output)


@shape_rule(*overloads("reflection_pad1d_backward replication_pad1d_backward"), tags=("scatter",))
def pad1d_backward(grad_output: Any, self: Any, padding: Sequence[Any]) -> TensorMeta:
    return fresh(self.shape, self)


@shape_rule(
    *overloads(
        "reflection_pad2d_backward replication_pad2d_backward reflection_pad3d_backward replication_pad3d_backward"
    ),
    tags=("scatter",),
)
def pad_backward(grad_output: Any, self: Any, padding: Sequence[Any]) -> TensorMeta:
    return in_format(self)


@shape_rule(*overloads("grid_sampler_2d_backward grid_sampler_3d_backward"), tags=("scatter",))
def grid_sampler_backward(
    grad_output: Any,
    input: Any,
    grid: Any,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[TensorMeta | None, TensorMeta]:
    return fresh(input.shape, input) if output_mask[0] else None, fresh(grid.shape, grid)


# ---- pooling


@shape_rule(
    *overloads(
        "max_pool3d_with_indices_backward avg_pool3d_backward _adaptive_avg_pool3d_backward "
        "adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward"
    ),
    tags=("scatter",),
)
def pool_backward(grad_output: Any, self: Any, *_geometry: Any) -> TensorMeta:
    return fresh(self.shape, self)


@shape_rule(*overloads("adaptive_max_pool2d_backward"), tags=("scatter",))
def adaptive_max_pool2d_backward(grad_output: Any, self: Any, indices: Any) -> TensorMeta:
    return in_format(self)


# ---- embeddings and segments


@shape_rule(*overloads("_embedding_bag_per_sample_weights_backward"), tags=("index",))
def embedding_bag_weights_backward(grad: Any, weight: Any, indices: Any, *_rest: Any) -> TensorMeta:
    return fresh(indices.shape, grad)


@shape_rule(*overloads("_embedding_bag_dense_backward"), tags=("scatter",))
def embedding_bag_dense_backward(
    grad: Any,
    indices: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: Any,
    *_rest: Any,
) -> TensorMeta:
    return fresh((num_weights, grad.shape[1]), grad)


@shape_rule(*overloads("_segment_reduce_backward"), tags=("scatter",))
def segment_reduce_backward(grad: Any, output: Any, data: Any, reduce: str, **_options: Any) -> TensorMeta:
    return fresh(data.shape, data, grad.dtype)


@shape_rule(*overloads("masked_scatter_backward"), tags=("index",))
def masked_scatter_backward(grad_output: Any, mask: Any, sizes: Sequence[Any]) -> TensorMeta:
    return fresh(sizes, grad_output)


# ---- distances


@shape_rule(*overloads("_cdist_backward"), tags=("reduction",))
def cdist_backward(grad: Any, x1: Any, x2: Any, p: float, cdist: Any) -> TensorMeta:
    """The first operand's gradient, with the batch dimensions of both."""
    first, second = tuple(x1.shape), tuple(x2.shape)
    shape = (*broadcast_shapes(first[:-2], second[:-2]), *first[-2:])
    return like(x1) if 0 in shape or second[-2] == 0 else fresh(shape, x1)


@shape_rule(*overloads("_pdist_backward"), tags=("reduction",))
def pdist_backward(grad: Any, self: Any, p: float, pdist: Any) -> TensorMeta:
    return fresh(self.shape, self)
