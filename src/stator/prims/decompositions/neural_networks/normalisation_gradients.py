"""Gradients of batch, group and RMS normalisation by reductions and arithmetic, in float32 at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import decomposes
from stator.prims.decompositions.reductions import count
from stator.prims.layout import numel

from .normalisation import per_channel

aten = torch.ops.aten


@decomposes("native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    """In training the mean and the deviation depend on the input; in inference they are constants."""
    if 0 in tuple(input.shape):
        return NotImplemented
    rank = len(input.shape)
    dims = [0, *range(2, rank)]
    if train:
        mean, rstd = save_mean, save_invstd
    else:
        mean, rstd = running_mean, aten.rsqrt.default(aten.add.Tensor(running_var, eps))
    centred = aten.sub.Tensor(input, per_channel(mean, rank))
    grad_bias = aten.sum.dim_IntList(grad_out, dims) if train or output_mask[2] else None
    along = aten.sum.dim_IntList(aten.mul.Tensor(grad_out, centred), dims) if train or output_mask[1] else None
    grad_input = grad_weight = None
    if output_mask[0]:
        grad = grad_out
        if train:
            number = count(input, dims)
            slope = aten.div.Tensor(aten.mul.Tensor(along, aten.mul.Tensor(rstd, rstd)), number)
            grad = aten.sub.Tensor(grad, per_channel(aten.div.Tensor(grad_bias, number), rank))
            grad = aten.sub.Tensor(grad, aten.mul.Tensor(centred, per_channel(slope, rank)))
        factor = rstd if weight is None else aten.mul.Tensor(rstd, weight)
        grad_input = aten.mul.Tensor(grad, per_channel(factor, rank))
    if output_mask[1]:
        grad_weight = aten.mul.Tensor(along, rstd)
    return grad_input, grad_weight, grad_bias if output_mask[2] else None


@decomposes("batch_norm_backward")
def batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_var: Any,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Any,
) -> Any:
    """`save_var` is 1 / sqrt(var + eps), despite its name; `reserve` is the workspace of cuDNN and MIOpen."""
    if numel(tuple(reserve.shape)):
        return NotImplemented
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@decomposes("native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Any,
    input: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
) -> Any:
    if 0 in tuple(input.shape):
        return NotImplemented
    width = C // group
    grouped = [N, group, width, HxW]
    x, grad = aten.reshape.default(input, grouped), aten.reshape.default(grad_out, grouped)
    mean, rstd = aten.view.default(mean, [N, group, 1, 1]), aten.view.default(rstd, [N, group, 1, 1])
    x_hat = aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad if weight is None else aten.mul.Tensor(grad, aten.view.default(weight, [1, group, width, 1]))
        along = aten.mul.Tensor(x_hat, aten.mean.dim(aten.mul.Tensor(scaled, x_hat), [2, 3], True))
        centred = aten.sub.Tensor(aten.sub.Tensor(scaled, aten.mean.dim(scaled, [2, 3], True)), along)
        grad_input = aten.reshape.default(aten.mul.Tensor(centred, rstd), list(input.shape))
    if output_mask[1]:
        grad_weight = aten.view.default(aten.sum.dim_IntList(aten.mul.Tensor(grad, x_hat), [0, 3]), [C])
    if output_mask[2]:
        grad_bias = aten.view.default(aten.sum.dim_IntList(grad, [0, 3]), [C])
    return grad_input, grad_weight, grad_bias


@decomposes("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Sequence[Any], rstd: Any, weight: Any, output_mask: Sequence[bool]
) -> Any:
    if 0 in tuple(input.shape):
        return NotImplemented
    rank = len(input.shape)
    leading = rank - len(normalized_shape)
    inner, outer = list(range(leading, rank)), list(range(leading))
    x_hat = aten.mul.Tensor(input, rstd)
    grad_input = grad_weight = None
    if output_mask[0]:
        grad = grad_out if weight is None else aten.mul.Tensor(grad_out, weight)
        along = aten.mul.Tensor(x_hat, aten.mean.dim(aten.mul.Tensor(grad, x_hat), inner, True))
        grad_input = aten.mul.Tensor(aten.sub.Tensor(grad, along), rstd)
    if output_mask[1] and weight is not None:
        product = aten.mul.Tensor(grad_out, x_hat)
        grad_weight = aten.sum.dim_IntList(product, outer) if outer else product
    return grad_input, grad_weight
