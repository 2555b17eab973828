"""Attention of nested tensors on CPUs. Eager computes it on nested tensors of another layout, which only its C++ knows;
graphs compute it on padded tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.nested._internal import nested_tensor, sdpa

from stator.graph.fake.wrapper_subclasses import fakes_in

_RAGGED = 2  # the ragged dimension of [batch, heads, length, width]


def takes_padded(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool) -> bool:
    """Whether attention of these tensors, fake ones, runs on padded tensors."""
    given = (query, key, value)
    if mask is not None or dropout or not all(type(one) is nested_tensor.NestedTensor for one in given):
        return False
    usual = all(one.dim() == 4 and one._ragged_idx == _RAGGED and one.lengths() is None for one in given)
    if not usual or not fakes_in(query) or query.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    if key.shape[_RAGGED] != value.shape[_RAGGED] or len({one.dtype for one in given}) > 1:
        return False
    params = torch.backends.cuda.SDPAParams(query, key, value, mask, dropout, causal, False)
    return torch.backends.cuda.math_sdp_enabled() and sdpa._can_use_math_sdpa_jagged(params)


def padded_attention(query: Any, key: Any, value: Any, scale: float | None = None) -> torch.Tensor:
    """Attention of [batch, heads, length, width] tensors, whose lengths differ. Padding is hidden by a mask."""
    rows, keys, values = map(_padded, (query, key, value))
    lengths = key.offsets().diff()[:, None, None, None]
    mask = torch.arange(keys.shape[_RAGGED], device=lengths.device) < lengths
    attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale).transpose(1, 2)
    made = nested_tensor.nested_from_padded(attended, query.offsets(), ragged_idx=1, sum_S=query.values().shape[1])
    return made.transpose(1, 2)


def _padded(one: Any) -> torch.Tensor:
    longest = one.offsets().diff().max().item()
    batch, heads, _, width = one.shape
    made: torch.Tensor = one.transpose(1, 2).to_padded_tensor(0.0, (batch, longest, heads, width))
    return made.transpose(1, 2)
