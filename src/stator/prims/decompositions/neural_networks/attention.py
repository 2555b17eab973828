"""Scaled dot-product attention by matrix products and softmax."""

from __future__ import annotations

import math
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import cast, decomposes, iota

aten = torch.ops.aten


@decomposes("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """softmax(Q K^T scale + mask) V and the log-sum-exp of each row; all [batch, heads, length, width]. Rows of which a
    mask hides all keys are zero."""
    if dropout_p != 0.0:
        return NotImplemented
    length, width = query.shape[2], query.shape[3]
    keys = key.shape[2]
    scale = 1 / width**0.5 if scale is None else scale
    scores = aten.mul.Tensor(flat_bmm(query, aten.transpose.int(key, 2, 3)), scale)
    if is_causal:
        above = aten.gt.Tensor(
            aten.unsqueeze.default(iota(keys, query), 0), aten.unsqueeze.default(iota(length, query), 1)
        )
        scores = aten.where.ScalarSelf(above, -math.inf, scores)
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            scores = aten.where.ScalarOther(attn_mask, scores, -math.inf)
        else:
            scores = aten.add.Tensor(scores, cast(attn_mask, scores.dtype))
    attended = flat_bmm(aten._softmax.default(scores, 3, False), value)
    if attn_mask is not None:
        hidden = aten.eq.Scalar(aten.amax.default(scores, [3], True), -math.inf)
        attended = aten.where.ScalarSelf(hidden, 0.0, attended)
    return attended, aten.logsumexp.default(scores, [3])


def flat_bmm(left: Any, right: Any) -> Any:
    """Matrix products over two batch dimensions."""
    batch, heads, rows, inner = left.shape
    columns = right.shape[3]
    product = aten.bmm.default(
        aten.reshape.default(left, [batch * heads, rows, inner]),
        aten.reshape.default(right, [batch * heads, inner, columns]),
    )
    return aten.view.default(product, [batch, heads, rows, columns])
