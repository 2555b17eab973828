"""Forms of normalisations, losses and attention whose numbers change between calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from stator.graph.fake.number_stand_ins import is_number

from .data_dependent_functions import decomposed, stand_ins
from .number_forms import (
    has_gradient,
    is_between,
    is_empty,
    is_half,
    is_positive,
    is_real,
    is_real_number,
    of_numbers,
    takes,
)

aten = torch.ops.aten

# ---- normalisation --------------------------------------------------------------------------------------------------


class _WithStatistics(torch.autograd.Function):
    """A normalisation and eager's gradient of it.

    forward: tensors to (result, mean, 1 / deviation). backward: (gradient, tensors, statistics, wanted gradients) to
    the gradients.
    """

    @staticmethod
    def forward(ctx: Any, forward: Callable[..., Any], backward: Callable[..., Any], *tensors: Any) -> Any:
        result, mean, rstd = forward(*tensors)
        ctx.backward, ctx.given = backward, [one is not None for one in tensors]
        ctx.save_for_backward(*[one for one in tensors if one is not None], mean, rstd)
        ctx.mark_non_differentiable(mean, rstd)
        return result, mean, rstd

    @staticmethod
    def backward(ctx: Any, grad: Any, *_statistics: Any) -> Any:
        *tensors, mean, rstd = ctx.saved_tensors
        given = iter(tensors)
        all_tensors = [next(given) if one else None for one in ctx.given]
        found = ctx.backward(grad, all_tensors, mean, rstd, list(ctx.needs_input_grad[2:]))
        return None, None, *found


def _takes_normalised(eps: Any, *tensors: Any) -> bool:
    given = [one for one in tensors if one is not None]
    same = all(one.dtype is given[0].dtype for one in given)  # C++ has kernels for mixed ones
    return is_number(eps) and is_real(*given) and same and not any(map(is_empty, given))


@takes("layer_norm")
def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, cudnn_enable: bool = True
) -> Any:
    shape = list(normalized_shape)
    rank = len(shape)
    own = [list(one.shape) for one in (weight, bias) if one is not None]
    if not _takes_normalised(eps, input, weight, bias) or not rank or rank > input.dim():
        return NotImplemented
    if list(input.shape[-rank:]) != shape or any(one != shape for one in own):
        return NotImplemented  # torch raises the error

    def backward(grad: Any, tensors: Any, mean: Any, rstd: Any, wanted: Any) -> Any:
        x, w, b = tensors
        return aten.native_layer_norm_backward.default(grad, x, shape, mean, rstd, w, b, wanted)

    return _WithStatistics.apply(
        lambda x, w, b: decomposed(aten.native_layer_norm.default, x, shape, w, b, eps), backward, input, weight, bias
    )[0]  # type: ignore[no-untyped-call]


@takes("group_norm")
def _group_norm(
    input: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, cudnn_enabled: bool = True
) -> Any:
    if not _takes_normalised(eps, input, weight, bias) or input.dim() < 2 or type(num_groups) is not int:
        return NotImplemented
    images, channels = input.shape[:2]
    if channels % num_groups or any(one is not None and tuple(one.shape) != (channels,) for one in (weight, bias)):
        return NotImplemented
    pixels = math.prod(input.shape[2:])

    def backward(grad: Any, tensors: Any, mean: Any, rstd: Any, wanted: Any) -> Any:
        x, w, _ = tensors
        return aten.native_group_norm_backward.default(
            grad, x, mean, rstd, w, images, channels, pixels, num_groups, wanted
        )

    # C++ takes its input in one of two layouts
    last = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last)
    packed = input if last else input.contiguous()
    return _WithStatistics.apply(  # type: ignore[no-untyped-call]
        lambda x, w, b: decomposed(aten.native_group_norm.default, x, w, b, images, channels, pixels, num_groups, eps),
        backward,
        packed,
        weight,
        bias,
    )[0]


@takes("rms_norm")
def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    rank = len(normalized_shape)
    if not _takes_normalised(eps, input, weight) or not rank or list(input.shape[-rank:]) != list(normalized_shape):
        return NotImplemented
    if weight is not None and list(weight.shape) != list(normalized_shape):
        return NotImplemented
    wide = input.float() if is_half(input) else input
    scaled = wide * torch.rsqrt(wide.square().mean(list(range(-rank, 0)), keepdim=True) + eps)
    return (scaled if weight is None else scaled * weight).to(input.dtype)


@takes("instance_norm")
def _instance_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: Any,
    eps: Any,
    cudnn_enabled: bool,
) -> Any:
    """Batch normalisation of one image, whose channels are those of all images."""
    if running_mean is not None or running_var is not None or not use_input_stats or input.dim() < 3:
        return NotImplemented
    images, channels = input.shape[:2]
    weight, bias = (None if one is None else one.repeat(images) for one in (weight, bias))
    packed = input.contiguous().view(1, images * channels, *input.shape[2:])
    result = _batch_norm(packed, weight, bias, None, None, True, momentum, eps, cudnn_enabled)
    return result if result is NotImplemented else result.view(input.shape)


@takes("batch_norm")
def _batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: Any,
    eps: Any,
    cudnn_enabled: bool,
) -> Any:
    """Like `native_batch_norm`, whose gradient of the training mode needs no eps. The running statistics are
    written."""
    statistics = [one for one in (running_mean, running_var) if one is not None]
    parameters = [one for one in (weight, bias, *statistics) if one is not None]
    if not (is_real_number(eps) and is_real_number(momentum)) or input.dim() < 2 or has_gradient(*statistics):
        return NotImplemented
    if any(tuple(one.shape) != (input.shape[1],) for one in parameters) or len(statistics) == 1:
        return NotImplemented
    if not is_real(input, *parameters) or any(one.dtype is not input.dtype for one in parameters) or is_empty(input):
        return NotImplemented
    if not training:
        return (
            _by_running_statistics(input, weight, bias, running_mean, running_var, eps)
            if statistics
            else NotImplemented
        )

    def forward(x: Any, w: Any, b: Any) -> Any:
        if not statistics:
            return decomposed(aten._native_batch_norm_legit.no_stats, x, w, b, True, momentum, eps)
        *made, mean, variance = decomposed(
            aten._native_batch_norm_legit_functional.default, x, w, b, running_mean, running_var, True, momentum, eps
        )
        running_mean.copy_(mean)
        running_var.copy_(variance)
        return made

    def backward(grad: Any, tensors: Any, mean: Any, rstd: Any, wanted: Any) -> Any:
        x, w, _ = tensors
        return aten.native_batch_norm_backward.default(grad, x, w, None, None, mean, rstd, True, 0.0, wanted)

    return _WithStatistics.apply(forward, backward, input, weight, bias)[0]  # type: ignore[no-untyped-call]


def _by_running_statistics(input: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: Any) -> Any:
    shape = [-1, *[1] * (input.dim() - 2)]
    wide = torch.float32 if is_half(input) else input.dtype
    result = (input.to(wide) - mean.to(wide).view(shape)) * torch.rsqrt(variance.to(wide) + eps).view(shape)
    result = result if weight is None else result * weight.to(wide).view(shape)
    return (result if bias is None else result + bias.to(wide).view(shape)).to(input.dtype)


# ---- losses ---------------------------------------------------------------------------------------------------------


def _reduced(loss: Any, reduction: int) -> Any:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def _beyond_a_distance(name: str, target: Any) -> None:
    """Register a loss that is square up to a distance, and linear beyond."""

    @takes(name)
    def form(input: Any, other: Any, reduction: int = 1, distance: Any = 1.0) -> Any:
        if not is_positive(distance) or not is_real(input, other) or is_empty(input):
            return NotImplemented
        return decomposed(target, input, other, reduction, distance)


_beyond_a_distance("smooth_l1_loss", aten.smooth_l1_loss.default)
_beyond_a_distance("huber_loss", aten.huber_loss.default)


@takes("cross_entropy_loss")
def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: Any = 0.0,
) -> Any:
    """(1 - s) times the loss of the labels, and s times the mean loss of all classes (Szegedy et al., 2016)."""
    if not is_between(label_smoothing, 0, 1) or not is_real(input) or is_empty(input) or input.dim() < 1:
        return NotImplemented
    dim = 0 if input.dim() == 1 else 1
    classes = input.shape[dim]
    logs = F.log_softmax(input, dim)
    by_class = [-1, *[1] * (input.dim() - dim - 1)]
    weighted = logs if weight is None else logs * weight.view(by_class)
    if target.shape == input.shape:  # probabilities
        if not is_real(target):
            return NotImplemented
        smooth = target * (1 - label_smoothing) + label_smoothing / classes
        loss = -(weighted * smooth).sum(dim)
        count = input.numel() / classes
        return loss if reduction == 0 else loss.sum() if reduction == 2 else loss.sum() / count
    if target.is_floating_point():
        return NotImplemented
    names = {0: "none", 1: "mean", 2: "sum"}
    labels = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=names[reduction])
    ignored = target == ignore_index
    smooth = (-weighted.sum(dim)).masked_fill(ignored, 0.0)
    if reduction == 1:
        safe = target.masked_fill(ignored, 0)
        counted = torch.ones_like(smooth) if weight is None else weight[safe]
        smooth = smooth.sum() / counted.masked_fill(ignored, 0.0).sum()
    elif reduction == 2:
        smooth = smooth.sum()
    return labels * (1 - label_smoothing) + smooth * (label_smoothing / classes)


@takes("margin_ranking_loss")
def _margin_ranking(input1: Any, input2: Any, target: Any, margin: Any = 0.0, reduction: int = 1) -> Any:
    if not input1.dim() == input2.dim() == target.dim():
        return NotImplemented  # torch raises the error
    return _reduced((-target * (input1 - input2) + margin).clamp_min(0), reduction)


@takes("hinge_embedding_loss")
def _hinge_embedding(input: Any, target: Any, margin: Any = 1.0, reduction: int = 1) -> Any:
    near = torch.where(target != 1, (margin - input).clamp_min(0), 0.0)
    return _reduced(near + torch.where(target != -1, input, 0.0), reduction)


@takes("cosine_embedding_loss")
def _cosine_embedding(input1: Any, input2: Any, target: Any, margin: Any = 0.0, reduction: int = 1) -> Any:
    if target.dim() not in (0, 1) or input1.dim() != target.dim() + 1 or input2.dim() != target.dim() + 1:
        return NotImplemented  # torch raises the error
    dim = target.dim()
    squares = [(one * one).sum(dim) + 1e-12 for one in (input1, input2)]
    cosine = (input1 * input2).sum(dim) / (squares[0] * squares[1]).sqrt()
    apart = torch.where(target == -1, (cosine - margin).clamp_min(0), 0.0)
    return _reduced(torch.where(target == 1, 1 - cosine, 0.0) + apart, reduction)


@takes("triplet_margin_loss")
def _triplet_margin(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: Any = 1.0,
    p: Any = 2.0,
    eps: Any = 1e-6,
    swap: bool = False,
    reduction: int = 1,
) -> Any:
    if anchor.dim() != positive.dim() or anchor.dim() != negative.dim() or is_number(p):
        return NotImplemented
    near = _distance(anchor, positive, p, eps)
    far = _distance(anchor, negative, p, eps)
    if swap:
        far = torch.min(far, _distance(positive, negative, p, eps))
    return _reduced((near + margin - far).clamp_min(0), reduction)


@takes("poisson_nll_loss")
def _poisson_nll(input: Any, target: Any, log_input: bool, full: bool, eps: Any, reduction: int) -> Any:
    if full or log_input:
        return NotImplemented
    return _reduced(input - target * torch.log(input + eps), reduction)


# ---- distances and attention ----------------------------------------------------------------------------------------


@takes("pairwise_distance")
def _distance(x1: Any, x2: Any, p: Any = 2.0, eps: Any = 1e-6, keepdim: bool = False) -> Any:
    if is_number(p) or not is_real(x1, x2):
        return NotImplemented
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim=keepdim)


@takes("cosine_similarity")
def _cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: Any = 1e-8) -> Any:
    """Norms are at least eps, which does not affect the gradient of the norm."""
    if not is_real(x1, x2) or x1.dtype is not x2.dtype:
        return NotImplemented
    x1, x2 = torch.broadcast_tensors(x1, x2)
    scaled = []
    for one in (x1, x2):
        norm = torch.linalg.vector_norm(one, 2, dim, keepdim=True).clone()
        with torch.no_grad():
            norm.clamp_min_(eps)
        scaled.append(one / norm)
    return (scaled[0] * scaled[1]).sum(dim)


@takes("scaled_dot_product_attention")
def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """The query takes the scale in advance, in place of the kernel; half floats would be rounded once more. With
    dropout, eager has no kernel on CPUs, and multiplies matrices."""
    if not is_real(query) or is_half(query) or query.is_nested or query.dim() < 3:
        return NotImplemented
    width = query.shape[-1]
    if is_number(dropout_p):
        if not is_between(dropout_p, 0, 1) or enable_gqa or query.device.type != "cpu":
            return NotImplemented
        scaled = query * (width**-0.5 if scale is None else scale)
        return _by_products(scaled, key, value, attn_mask, dropout_p, is_causal)
    scaled = query * (scale * math.sqrt(width)) if type(width) is int else query * scale * width**0.5
    attend = stand_ins.get(F.scaled_dot_product_attention)
    assert attend is not None
    return attend(scaled, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa)


def _by_products(query: Any, key: Any, value: Any, mask: Any, dropout_p: Any, is_causal: bool) -> Any:
    """softmax(Q K^T + mask) V, with dropout of the weights. A row of which nothing is seen has weights of zero."""
    if is_causal:
        if mask is not None:
            return NotImplemented
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    scores = query @ key.transpose(-2, -1)
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype is torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if mask is not None:
        weights = torch.where((scores == -math.inf).all(-1, keepdim=True), 0.0, weights)
    dropped = of_numbers(torch.dropout, (weights, dropout_p, True), {})
    return dropped if dropped is NotImplemented else dropped @ value
