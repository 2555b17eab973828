"""Shape rules of scaled dot-product attention kernels."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import permuted_strides, preserved_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.shape_rules.operands import fresh, overloads

aten = torch.ops.aten
ATTENTION = ("attention",)


@shape_rule(*overloads("_scaled_dot_product_flash_attention_for_cpu"), tags=ATTENTION)
def flash_attention_for_cpu(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[TensorMeta, TensorMeta]:
    """The output is laid out like the query; the log-sum-exp as (batch, sequence, heads), transposed."""
    batch, heads, length = tuple(query.shape)[:3]
    shape = (batch, heads, length, value.shape[3])
    statistics = torch.float64 if query.dtype is torch.float64 else torch.float32
    return (
        fresh(shape, query, stride=preserved_strides(shape, query.stride())),
        fresh((batch, heads, length), query, statistics, permuted_strides((batch, heads, length), (1, 2, 0))),
    )


@shape_rule(*overloads("_scaled_dot_product_flash_attention_for_cpu_backward"), tags=ATTENTION)
def flash_attention_for_cpu_backward(
    grad_out: Any, query: Any, key: Any, value: Any, *_args: Any, **_options: Any
) -> tuple[TensorMeta, ...]:
    def like(tensor: Any) -> TensorMeta:
        shape = tuple(tensor.shape)
        return fresh(shape, tensor, stride=permuted_strides(shape, (3, 1, 2, 0)))

    return like(query), like(key), like(value)


@shape_rule(*overloads("_scaled_dot_product_attention_math"), tags=ATTENTION)
def attention_math(query: Any, key: Any, value: Any, *_args: Any, **_options: Any) -> tuple[TensorMeta, TensorMeta]:
    leading = tuple(query.shape)[:-1]
    return fresh((*leading, value.shape[-1]), query), fresh((*leading, key.shape[-2]), query)


@shape_rule(aten._native_multi_head_attention.default, tags=ATTENTION)
def native_multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[TensorMeta, TensorMeta | None]:
    """nn.MultiheadAttention calls this without gradients. The weights may be None, although the schema does not say
    so."""
    batch, length = tuple(query.shape)[:2]
    heads = () if average_attn_weights else (num_head,)
    weights = fresh((batch, *heads, length, key.shape[1]), query) if need_weights else None
    return fresh(tuple(query.shape), query), weights


@shape_rule(aten._transformer_encoder_layer_fwd.default, tags=ATTENTION)
def transformer_encoder_layer(src: Any, *_args: Any, **_options: Any) -> TensorMeta:
    """nn.TransformerEncoderLayer calls this without gradients."""
    return fresh(tuple(src.shape), src)
