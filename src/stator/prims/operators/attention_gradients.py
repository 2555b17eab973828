"""Gradients of attention from its operands alone: `stator::attention_gradients`.

ATen's operators want the result and the logarithms of the forward as well. A kernel that has all scores of a head at
hand needs neither, so that the forward may be any kernel, and keeps less.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.prims.layout import permuted_strides, preserved_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.shape_rules.neural_networks.attention import gradient_of_mask
from stator.prims.shape_rules.operands import fresh

Tensor = torch.Tensor


def _formula(
    tangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    of_bias: bool,
    is_causal: bool,
    scale: float,
    by_rows: bool,
    hidden_rows_are_zero: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The kernel of eager, for programs in which no launch computes the gradients."""
    working = torch.promote_types(query.dtype, torch.float32)
    g, q, k, v = [one.to(working) for one in (tangent, query, key, value)]
    shared = query.shape[1] // key.shape[1]
    k, v = [one.repeat_interleave(shared, 1) for one in (k, v)]
    scores = q @ k.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    if is_causal:
        place = torch.arange(scores.shape[-1], device=scores.device)
        scores = scores.masked_fill(place > place[: scores.shape[-2], None], -math.inf)
    weights = torch.softmax(scores, -1)
    if hidden_rows_are_zero:
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    of_weights = g @ v.transpose(-1, -2)
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    of_sides = of_scores.transpose(-1, -2) @ q * scale, weights.transpose(-1, -2) @ g
    found = of_scores @ k * scale, *[one.unflatten(1, (-1, shared)).sum(2) for one in of_sides]
    metas = attention_gradients_shape(tangent, query, key, value, bias, of_bias, is_causal, scale, by_rows, True)
    results = [torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=query.device) for meta in metas]
    for result, one in zip(results, (*found, of_scores) if of_bias else found, strict=False):
        result.copy_(one)
    return tuple(results)  # type: ignore[return-value]


_library = torch.library.Library("stator", "FRAGMENT")
_library.define(
    "attention_gradients(Tensor tangent, Tensor query, Tensor key, Tensor value, Tensor? bias, bool of_bias, "
    "bool is_causal, float scale, bool by_rows, bool hidden_rows_are_zero) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.impl("attention_gradients", _formula, "CompositeExplicitAutograd")

attention_gradients = torch.ops.stator.attention_gradients.default


@shape_rule(attention_gradients, tags=("attention",))
def attention_gradients_shape(
    tangent: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    of_bias: bool,
    is_causal: bool,
    scale: float,
    by_rows: bool,
    hidden_rows_are_zero: bool,
) -> tuple[TensorMeta, TensorMeta, TensorMeta, TensorMeta]:
    """Of the softmax of query @ key^T * scale + bias, times value, all of (batch, heads, length, width); neighbouring
    heads of the query may share heads of key and value. bias: broadcast to the scores, and of their shape if `of_bias`.
    A row without a key gives zeros if `hidden_rows_are_zero`, else NaN.

    The gradients of query, key and value are laid out as (batch, length, heads, width) if `by_rows`, else like these;
    that of the bias has rows that begin at multiples of 16, and no elements unless `of_bias`.
    """

    def like(tensor: Any) -> TensorMeta:
        shape = tuple(tensor.shape)
        strides = permuted_strides(shape, (3, 1, 2, 0)) if by_rows else preserved_strides(shape, tensor.stride())
        return fresh(shape, tensor, stride=strides)

    of_scores = gradient_of_mask(bias) if of_bias else fresh((0,), query)
    return like(query), like(key), like(value), of_scores
