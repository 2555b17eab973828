"""Attention of CPUs under a large mask that may hide nothing: `stator::masked_attention` and its backward.

Encoders get a mask for padding, which is all zeros when a batch has none. Eager code looks at the data and then leaves
the mask out; a captured graph cannot. The library spends a sixth of its time on adding zeros. So a compiled graph finds
out whether a mask has anything but zeros, and each of its calls under that mask reads the answer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import library

# Below so many elements the answer costs more than it saves
WORTHWHILE = 1 << 18

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default._op
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default._op


def masked_attention(
    *args: Any, hides: torch.Tensor, attn_mask: torch.Tensor, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ATen's operator, to the last bit. hides: bool, whether a score gets anything but 0."""
    return _attention(*args, attn_mask=attn_mask if hides.item() else None, scale=scale)  # type: ignore[no-any-return]


def masked_attention_backward(
    *args: Any, hides: torch.Tensor, attn_mask: torch.Tensor, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As above."""
    return _backward(*args, attn_mask=attn_mask if hides.item() else None, scale=scale)  # type: ignore[no-any-return]


_library = library.Library("stator", "FRAGMENT")
_library.define(
    "masked_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, *, "
    "Tensor hides, Tensor attn_mask, float? scale=None) -> (Tensor, Tensor)"
)
_library.impl("masked_attention", masked_attention, "CompositeExplicitAutograd")
_library.define(
    "masked_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    "float dropout_p, bool is_causal, *, Tensor hides, Tensor attn_mask, float? scale=None) -> (Tensor, Tensor, Tensor)"
)
_library.impl("masked_attention_backward", masked_attention_backward, "CompositeExplicitAutograd")
