"""Layer, group, batch and RMS normalisation and their gradients, by moments and arithmetic; statistics are computed in
float32 at least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import decomposes, widened
from stator.prims.decompositions.reductions import count
from stator.prims.layout import is_channels_last, is_contiguous, numel
from stator.prims.type_promotion import computation_dtype

aten = torch.ops.aten
_FEW_TERMS, _MANY_TERMS = 7, 256


def normalised(x: Any, dims: list[int], eps: float) -> tuple[Any, Any, Any]:
    """Return (x - mean) / sqrt(var + eps) over `dims`, the mean, and 1 / sqrt(var + eps), with kept dimensions."""
    variance, mean = aten.var_mean.correction(x, dims, correction=0, keepdim=True)
    rstd = aten.rsqrt.default(aten.add.Tensor(variance, eps))
    return aten.mul.Tensor(aten.sub.Tensor(x, mean), rstd), mean, rstd


def affine(x: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        x = aten.mul.Tensor(x, weight)
    return x if bias is None else aten.add.Tensor(x, bias)


def per_channel(parameter: Any, rank: int) -> Any:
    """Shape a [C] vector to broadcast over [N, C, ...]."""
    return None if parameter is None else aten.view.default(parameter, [-1, *[1] * (rank - 2)])


@decomposes("native_layer_norm")
def native_layer_norm(input: Any, normalized_shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> Any:
    if 0 in tuple(input.shape):
        return NotImplemented
    rank = len(input.shape)
    result, mean, rstd = normalised(input, list(range(rank - len(normalized_shape), rank)), eps)
    return affine(result, weight, bias), mean, rstd


@decomposes("native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: Any,
    input: Any,
    normalized_shape: Sequence[Any],
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    output_mask: Sequence[bool],
) -> Any:
    if 0 in tuple(input.shape):
        return NotImplemented
    rank = len(input.shape)
    leading = rank - len(normalized_shape)
    inner, outer = list(range(leading, rank)), list(range(leading))
    x_hat = aten.mul.Tensor(aten.sub.Tensor(input, mean), rstd)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad = grad_out if weight is None else aten.mul.Tensor(grad_out, weight)
        along = aten.mul.Tensor(x_hat, aten.mean.dim(aten.mul.Tensor(grad, x_hat), inner, True))
        centred = aten.sub.Tensor(aten.sub.Tensor(grad, aten.mean.dim(grad, inner, True)), along)
        grad_input = aten.mul.Tensor(centred, rstd)
    if output_mask[1]:
        product = aten.mul.Tensor(grad_out, x_hat)
        grad_weight = aten.sum.dim_IntList(product, outer) if outer else product
    if output_mask[2]:
        grad_bias = aten.sum.dim_IntList(grad_out, outer) if outer else grad_out
    return grad_input, grad_weight, grad_bias


@decomposes("_fused_rms_norm")
def fused_rms_norm(input: Any, normalized_shape: Sequence[Any], weight: Any, eps: float | None) -> Any:
    if eps is None or 0 in tuple(input.shape):
        return NotImplemented
    rank = len(input.shape)
    dims = list(range(rank - len(normalized_shape), rank))
    rstd = aten.rsqrt.default(aten.add.Tensor(aten.mean.dim(aten.mul.Tensor(input, input), dims, True), eps))
    return affine(aten.mul.Tensor(input, rstd), weight, None), rstd


@decomposes("native_group_norm")
def native_group_norm(input: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float) -> Any:
    if 0 in tuple(input.shape):
        return NotImplemented
    groups = aten.reshape.default(input, [N, group, (C // group) * HxW])
    result, mean, rstd = normalised(groups, [2], eps)
    result = aten.reshape.default(result, list(input.shape))
    rank = len(input.shape)
    result = affine(result, per_channel(weight, rank), per_channel(bias, rank))
    return result, aten.squeeze.dims(mean, [2]), aten.squeeze.dims(rstd, [2])


@decomposes("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    rank = len(input.shape)
    rstd = aten.rsqrt.default(aten.add.Tensor(running_var, eps))
    centred = aten.sub.Tensor(input, per_channel(running_mean, rank))
    result = affine(
        aten.mul.Tensor(centred, per_channel(rstd, rank)), per_channel(weight, rank), per_channel(bias, rank)
    )
    count = 0 if input.device.type == "cpu" else input.shape[1]  # GPUs have statistics, but do not write them
    return result, aten.new_zeros.default(running_mean, [count]), aten.new_zeros.default(running_mean, [count])


def by_batch_statistics(
    input: Any, weight: Any, bias: Any, eps: float, running: Sequence[Any] = ()
) -> tuple[Any, Any, Any, Any]:
    """Return the normalised input, then mean, 1 / sqrt(var + eps) and (biased) variance of each channel. The layouts of
    the running statistics `running` affect eager's path too."""
    sums = _sums_dtype(input)
    input, weight, bias, running = widened((input, weight, bias, tuple(running)))
    rank = len(input.shape)
    dims = [0, *range(2, rank)]
    on_cpu = input.dtype is torch.float32 and input.device.type == "cpu"
    packed = on_cpu and _is_packed(input)
    in_one_step = packed and all(map(_is_row, (weight, bias, *running)))
    weight, bias = per_channel(weight, rank), per_channel(bias, rank)
    if packed:
        mean, rstd, variance = _wide_statistics(input, dims, eps, sums)
    elif on_cpu:
        mean, rstd, variance = _scattered_statistics(input, dims, eps)
    else:
        variance, mean = aten.var_mean.correction(input, dims, correction=0, keepdim=True)
        if sums is not None:
            mean = _infinite_with_its_sum(mean, count(input, dims))
            variance = aten.where.ScalarSelf(_is_infinite(mean), math.inf, variance)
        rstd = aten.rsqrt.default(aten.add.Tensor(variance, eps))
    if in_one_step:
        slope = rstd if weight is None else aten.mul.Tensor(rstd, weight)
        shift = aten.neg.default(aten.mul.Tensor(mean, slope))
        if bias is not None:
            shift = aten.addcmul.default(bias, mean, slope, value=-1)
        result = aten.addcmul.default(shift, input, slope)
    else:
        result = affine(aten.mul.Tensor(aten.sub.Tensor(input, mean), rstd), weight, bias)
    return result, aten.squeeze.dims(mean, dims), aten.squeeze.dims(rstd, dims), aten.squeeze.dims(variance, dims)


def _is_row(parameter: Any) -> bool:
    return parameter is None or is_contiguous(tuple(parameter.shape), tuple(parameter.stride()))


def _is_packed(x: Any) -> bool:
    """Whether eager's vector code takes this layout; others are computed element by element, in other steps."""
    shape, strides = tuple(x.shape), tuple(x.stride())
    return is_contiguous(shape, strides) or is_channels_last(shape, strides)


def _sums_dtype(x: Any) -> torch.dtype | None:
    """The dtype in which eager adds the elements of a channel, whose overflow makes the mean infinite. None: it adds
    none, but updates a mean."""
    if x.device.type != "cpu":
        return None
    images = numel(tuple(x.shape[2:])) != 1
    in_double = x.dtype is torch.float32 and images and is_contiguous(tuple(x.shape), tuple(x.stride()))
    return torch.float64 if in_double else computation_dtype(x.dtype)


def _is_infinite(x: Any) -> Any:
    return aten.eq.Scalar(aten.abs.default(x), math.inf)


def _infinite_with_its_sum(mean: Any, number: Any) -> Any:
    total = aten.mul.Tensor(mean, number)
    return aten.where.self(_is_infinite(total), total, mean)


def _wide_statistics(input: Any, dims: list[int], eps: float, sums: torch.dtype | None) -> tuple[Any, Any, Any]:
    """Return mean, 1 / sqrt(var + eps) and variance by sums in double precision, rounded where eager rounds: networks
    with kinked activations amplify any rounding difference. Sums that overflow in `sums` do so here."""
    wide = torch.float64
    number = count(input, dims)
    rows = _added_as_floats(input)
    mean = _narrowed(aten.div.Tensor(_wide_sum(input, dims, rows), number))
    if sums is torch.float32:
        mean = _infinite_with_its_sum(mean, number)
    deviation = aten.sub.Tensor(input, mean)
    squares = _wide_sum(aten.mul.Tensor(deviation, deviation), dims, rows)
    variance = aten.div.Tensor(_narrowed(squares), number)
    return mean, _inverse_deviation(aten._to_copy.default(variance, dtype=wide), eps), variance


def _added_as_floats(x: Any) -> list[int]:
    """The short rows of channels-last images, which are added in float32 before double precision takes over: widening
    each element takes longer than adding it, and few roundings do not show in the mean."""
    shape = tuple(x.shape)
    if len(shape) < 4 or is_contiguous(shape, tuple(x.stride())) or not isinstance(shape[-1], int):
        return []
    return [len(shape) - 1] if _FEW_TERMS <= shape[-1] <= _MANY_TERMS else []


def _wide_sum(x: Any, dims: list[int], first: list[int]) -> Any:
    if first:
        x = aten.sum.dim_IntList(x, first, True)
    return aten.sum.dim_IntList(x, dims, True, dtype=torch.float64)


def _scattered_statistics(input: Any, dims: list[int], eps: float) -> tuple[Any, Any, Any]:
    """Like `_wide_statistics` for a layout with gaps, overlaps or another order: the general mean, then deviations from
    it in double precision."""
    wide = torch.float64
    mean = aten.mean.dim(input, dims, True)
    deviation = aten.sub.Tensor(aten._to_copy.default(input, dtype=wide), aten._to_copy.default(mean, dtype=wide))
    squares = aten.sum.dim_IntList(aten.mul.Tensor(deviation, deviation), dims, True)
    variance = aten.div.Tensor(squares, count(input, dims))
    return mean, _inverse_deviation(variance, eps), _narrowed(variance)


def _inverse_deviation(variance: Any, eps: float) -> Any:
    """Return 1 / sqrt(variance + eps) of a variance in double precision."""
    return _narrowed(aten.reciprocal.default(aten.sqrt.default(aten.add.Tensor(variance, eps))))


def _narrowed(x: Any) -> Any:
    return aten._to_copy.default(x, dtype=torch.float32)


@decomposes("_native_batch_norm_legit.no_stats", wide=False)
def batch_norm_no_stats(input: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    if not training or 0 in tuple(input.shape):
        return NotImplemented
    return by_batch_statistics(input, weight, bias, eps)[:3]


@decomposes("_native_batch_norm_legit_functional", wide=False)
def batch_norm_functional(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if 0 in tuple(input.shape):
        return NotImplemented
    running_mean, running_var = widened((running_mean, running_var))
    if not training:
        input, weight, bias = widened((input, weight, bias))
        results = batch_norm_no_training(input, weight, bias, running_mean, running_var, momentum, eps)
        return (*results, aten.clone.default(running_mean), aten.clone.default(running_var))
    result, mean, rstd, variance = by_batch_statistics(input, weight, bias, eps, (running_mean, running_var))
    number = count(input, [0, *range(2, len(input.shape))])
    unbiased = aten.mul.Tensor(variance, number / (number - 1))
    new_mean = aten.add.Tensor(aten.mul.Tensor(running_mean, 1 - momentum), aten.mul.Tensor(mean, momentum))
    new_var = aten.add.Tensor(aten.mul.Tensor(running_var, 1 - momentum), aten.mul.Tensor(unbiased, momentum))
    return result, mean, rstd, new_mean, new_var


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
