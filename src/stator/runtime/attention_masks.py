"""Attention of CPUs under a large mask that may hide nothing: `stator::masked_attention` and its backward.

Encoders get a mask for padding, which is all zeros when a batch has none. Eager code looks at the data and then leaves
the mask out; a captured graph cannot. The library spends a sixth of its time on adding zeros, so each call looks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import library

# Below so many elements the look costs more than it saves
WORTHWHILE = 1 << 18

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default._op
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default._op


def hides_nothing(mask: torch.Tensor) -> bool:
    """Whether a mask that is added to scores is all zeros. Most others differ from zero in the scores of the first
    query, which are read first."""
    return not mask.select(-2, 0).any() and not mask.count_nonzero()


def masked_attention(*args: Any, attn_mask: torch.Tensor, scale: float | None = None) -> Any:
    """As ATen's operator; the results are equal to the last bit."""
    return _attention(*args, attn_mask=None if hides_nothing(attn_mask) else attn_mask, scale=scale)


def masked_attention_backward(*args: Any, attn_mask: torch.Tensor, scale: float | None = None) -> Any:
    """As ATen's operator."""
    return _backward(*args, attn_mask=None if hides_nothing(attn_mask) else attn_mask, scale=scale)


_library = library.Library("stator", "FRAGMENT")
_library.define(
    "masked_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, *, "
    "Tensor attn_mask, float? scale=None) -> (Tensor, Tensor)"
)
_library.impl("masked_attention", masked_attention, "CompositeExplicitAutograd")
_library.define(
    "masked_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    "float dropout_p, bool is_causal, *, Tensor attn_mask, float? scale=None) -> (Tensor, Tensor, Tensor)"
)
_library.impl("masked_attention_backward", masked_attention_backward, "CompositeExplicitAutograd")
