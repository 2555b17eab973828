"""Forms of dropout, random numbers, normalisations, losses and attention whose numbers change between calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import OpOverload

from stator.graph.fake.number_stand_ins import is_number

from .data_dependent_functions import decomposed, stand_ins
from .number_forms import below_autograd, forms, has_gradient, is_between, is_half, is_positive, is_real, takes

aten = torch.ops.aten


# ---- dropout --------------------------------------------------------------------------------------------------------


@takes("dropout", "dropout_")
def _dropout(input: Any, p: Any, train: bool) -> Any:
    if not train or not is_between(p, 0, 1) or not is_real(input):
        return NotImplemented
    if input.device.type == "cpu":
        return input * _noise(torch.empty_like(input), 1 - p)
    kept = below_autograd(aten.native_dropout.default, torch.ones_like(input), p, True)[1]
    return input * kept * (1 / (1 - p))


@takes("feature_dropout", "feature_dropout_")
def _feature_dropout(input: Any, p: Any, train: bool) -> Any:
    if not train or not is_between(p, 0, 1) or not is_real(input) or input.dim() < 2:
        return NotImplemented
    return input * _noise(input.new_empty([*input.shape[:2], *[1] * (input.dim() - 2)]), 1 - p)


def _noise(empty: Any, keep: Any) -> Any:
    """1 / keep with probability `keep`, else 0; as eager draws it."""
    return below_autograd(aten.bernoulli_.float, empty, keep).div_(keep)


# ---- random numbers -------------------------------------------------------------------------------------------------


def _draws(name: str, accepts: Callable[..., bool], target: OpOverload) -> None:
    """Register a function that fills a tensor with random numbers. accepts: whether eager does, for the numbers."""

    def form(input: Any, *numbers: Any, generator: Any = None, **named: Any) -> Any:
        if has_gradient(input) or not accepts(input, *numbers, **named):
            return NotImplemented
        return below_autograd(target, input, *numbers, generator=generator, **named)

    forms.add(name, form)


def _is_interval(input: Any, low: Any = 0.0, high: Any = 1.0, **named: Any) -> bool:
    low, high = named.get("from", low), named.get("to", high)
    return is_real(input) and is_between(high - low, 0, torch.finfo(input.dtype).max)


_draws("uniform_", _is_interval, aten.uniform_.default)
_draws("normal_", lambda x, mean=0.0, std=1.0: is_real(x) and is_positive(std), aten.normal_.default)
_draws("log_normal_", lambda x, mean=1.0, std=2.0: is_real(x) and is_positive(std), aten.log_normal_.default)
_draws("cauchy_", lambda x, median=0.0, sigma=1.0: is_real(x) and is_positive(sigma), aten.cauchy_.default)
_draws("exponential_", lambda x, lambd=1.0: is_real(x) and is_positive(lambd), aten.exponential_.default)
_draws("geometric_", lambda x, p: is_real(x) and is_between(p, 0, 1), aten.geometric_.default)
_draws("bernoulli_", lambda x, p=0.5: is_between(p, 0, 1), aten.bernoulli_.float)
_draws("bernoulli", lambda x, p: is_between(p, 0, 1), aten.bernoulli.p)


@takes("normal")
def _normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, **options: Any) -> Any:
    """From tensors of means or deviations; from two numbers, an empty tensor is filled."""
    if has_gradient(mean, std) or options.get("out") is not None or options.get("requires_grad"):
        return NotImplemented
    if not isinstance(std, torch.Tensor) and not is_positive(std):
        return NotImplemented
    if size is not None:
        return below_autograd(aten.normal_.default, torch.empty(size, **options), mean, std, generator=generator)
    target = aten.normal.Tensor_float if isinstance(mean, torch.Tensor) else aten.normal.float_Tensor
    return below_autograd(target, mean, std, generator=generator)


# ---- normalisation --------------------------------------------------------------------------------------------------


@takes("layer_norm")
def _layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5, cudnn_enable: bool = True
) -> Any:
    return _normalised(aten.native_layer_norm.default, input, list(normalized_shape), weight, bias, eps)


@takes("rms_norm")
def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    return _normalised(aten._fused_rms_norm.default, input, list(normalized_shape), weight, eps)


@takes("group_norm")
def _group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: Any = 1e-5, cudnn_enabled: bool = True
) -> Any:
    if input.dim() < 2 or is_number(num_groups):
        return NotImplemented
    images, channels, *size = input.shape
    if any(one is not None and tuple(one.shape) != (channels,) for one in (weight, bias)):
        return NotImplemented  # torch raises the error
    sizes = images, channels, math.prod(size), num_groups
    return _normalised(aten.native_group_norm.default, input, weight, bias, *sizes, eps)


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
    """The running statistics are written."""
    if input.dim() < 2 or (running_mean is None) is not (running_var is None):
        return NotImplemented
    if running_mean is None:
        return _normalised(aten._native_batch_norm_legit.no_stats, input, weight, bias, training, momentum, eps)
    given = input, weight, bias, running_mean, running_var
    if not training:
        return _normalised(aten._native_batch_norm_legit_no_training.default, *given, momentum, eps)
    functional = aten._native_batch_norm_legit_functional.default
    made = decomposed(functional, *given, True, momentum, eps) if _are_alike(given) else NotImplemented
    if made is NotImplemented:
        return made
    with torch.no_grad():
        running_mean.copy_(made[3])
        running_var.copy_(made[4])
    return made[0]


def _normalised(target: OpOverload, *args: Any) -> Any:
    made = decomposed(target, *args) if _are_alike(args) else NotImplemented
    return made if made is NotImplemented else made[0]


def _are_alike(args: Any) -> bool:
    """Whether all tensors are of one dtype: C++ has kernels for others."""
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    return is_real(*tensors) and len({one.dtype for one in tensors}) == 1


@takes("pad")
def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return torch.constant_pad_nd(input, pad, value) if mode == "constant" and is_real(input) else NotImplemented


@takes("softshrink")
def _softshrink(input: Any, lambd: Any = 0.5) -> Any:
    return decomposed(aten.softshrink.default, input, lambd) if is_positive(lambd) else NotImplemented


# ---- losses ---------------------------------------------------------------------------------------------------------


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
    dim = 0 if input.dim() == 1 else 1
    classes, soft = input.shape[dim], target.shape == input.shape  # probabilities of all classes
    if not is_between(label_smoothing, 0, 1) or not is_real(input):
        return NotImplemented
    if target.is_floating_point() is not soft:
        return NotImplemented  # torch raises the error
    logs = F.log_softmax(input, dim)
    weighted = logs if weight is None else logs * weight.view([-1, *[1] * (input.dim() - dim - 1)])
    if soft:
        smooth = target * (1 - label_smoothing) + label_smoothing / classes
        loss = _reduced(-(weighted * smooth).sum(dim), 0 if reduction == 0 else 2)
        return loss / (input.numel() / classes) if reduction == 1 else loss
    names = {0: "none", 1: "mean", 2: "sum"}
    labels = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=names[reduction])
    ignored = target == ignore_index
    smooth = _reduced((-weighted.sum(dim)).masked_fill(ignored, 0.0), 0 if reduction == 0 else 2)
    if reduction == 1:
        counted = torch.ones_like(logs.sum(dim)) if weight is None else weight[target.masked_fill(ignored, 0)]
        smooth = smooth / counted.masked_fill(ignored, 0.0).sum()
    return labels * (1 - label_smoothing) + smooth * (label_smoothing / classes)


def _reduced(loss: Any, reduction: int) -> Any:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@takes("margin_ranking_loss")
def _margin_ranking(input1: Any, input2: Any, target: Any, margin: Any = 0.0, reduction: int = 1) -> Any:
    if not input1.dim() == input2.dim() == target.dim():
        return NotImplemented  # torch raises the error
    return _reduced((-target * (input1 - input2) + margin).clamp_min(0), reduction)


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

    def distance(one: Any, other: Any) -> Any:
        return torch.linalg.vector_norm(one - other + eps, p, -1)

    far = distance(anchor, negative)
    far = torch.min(far, distance(positive, negative)) if swap else far
    return _reduced((distance(anchor, positive) + margin - far).clamp_min(0), reduction)


# ---- attention ------------------------------------------------------------------------------------------------------


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
    if not is_number(dropout_p):
        attend = stand_ins.get(F.scaled_dot_product_attention)
        assert attend is not None
        query = query * scale * width**0.5
        return attend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa)
    if enable_gqa or query.device.type != "cpu" or (is_causal and attn_mask is not None):
        return NotImplemented
    scores = query * (width**-0.5 if scale is None else scale) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        scores = torch.where(attn_mask, scores, -math.inf) if attn_mask.dtype is torch.bool else scores + attn_mask
    weights = torch.softmax(scores, -1)
    if attn_mask is not None:  # a row of which nothing is seen has weights of zero
        weights = torch.where((scores == -math.inf).all(-1, keepdim=True), 0.0, weights)
    dropped = _dropout(weights, dropout_p, True)
    return dropped if dropped is NotImplemented else dropped @ value
