"""Shape rules of scaled dot-product attention kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import contiguous_strides, permuted_strides, preserved_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.shape_rules.operands import fresh, overloads, shape_table

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


# The numbers of dropout's generator that the kernels of GPUs return for their backward
_SEED = {"flash": (torch.uint64, (2,)), "other": (torch.int64, ())}


def _generator(query: Any, kernel: str) -> tuple[TensorMeta, TensorMeta]:
    dtype, shape = _SEED[kernel]
    return fresh(shape, query, dtype), fresh((), query, dtype)


@shape_rule(*overloads("_scaled_dot_product_flash_attention"), tags=ATTENTION)
def flash_attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Of GPUs: the output is laid out like the query, the log-sum-exp as (batch, heads, length). Sequences of equal
    lengths have no cumulative lengths, and there is no mask to debug."""
    if return_debug_mask:
        raise Unsupported("attention-mask", "attention that returns the mask of its dropout is not compiled")
    shape = tuple(query.shape)
    return (
        fresh(shape, query, stride=preserved_strides(shape, query.stride())),
        fresh(shape[:3], query, torch.float32),
        *(None, None, shape[2], key.shape[2]),
        *_generator(query, "flash"),
        None,
    )


@shape_rule(*overloads("_scaled_dot_product_efficient_attention"), tags=ATTENTION)
def efficient_attention(
    query: Any, key: Any, value: Any, attn_bias: Any, compute_log_sumexp: bool, *_args: Any, **_options: Any
) -> tuple[TensorMeta, ...]:
    """Of GPUs: the output is laid out as (batch, length, heads, width); rows of the log-sum-exp are padded to multiples
    of 32."""
    batch, heads, length = tuple(query.shape)[:3]
    shape = (batch, heads, length, value.shape[3])
    padded = (length + 31) // 32 * 32 if compute_log_sumexp else 0
    return (
        fresh(shape, query, stride=permuted_strides(shape, (3, 1, 2, 0))),
        fresh((batch, heads, padded), query, torch.float32),
        *_generator(query, "other"),
    )


@shape_rule(*overloads("_scaled_dot_product_cudnn_attention"), tags=ATTENTION)
def cudnn_attention(
    query: Any, key: Any, value: Any, attn_bias: Any, compute_log_sumexp: bool, *_args: Any, **_options: Any
) -> Any:
    """Of GPUs: the output's dimensions are ordered in memory as the query's are."""
    batch, heads, length = tuple(query.shape)[:3]
    shape = (batch, heads, length, value.shape[3])
    statistics = fresh((batch, heads, length, 1), query, torch.float32)
    return (
        fresh(shape, query, stride=preserved_strides(shape, query.stride())),
        statistics if compute_log_sumexp else None,
        *(None, None, length, key.shape[2]),
        *_generator(query, "other"),
        None,
    )


@shape_rule(
    *overloads("_scaled_dot_product_flash_attention_backward _scaled_dot_product_cudnn_attention_backward"),
    tags=ATTENTION,
)
def attention_backward(
    grad_out: Any, query: Any, key: Any, value: Any, *_args: Any, **_options: Any
) -> tuple[TensorMeta, ...]:
    """Gradients are laid out like the tensors that they belong to."""

    def like(tensor: Any) -> TensorMeta:
        return fresh(tensor.shape, tensor, stride=preserved_strides(tuple(tensor.shape), tensor.stride()))

    return like(query), like(key), like(value)


@shape_rule(*overloads("_scaled_dot_product_efficient_attention_backward"), tags=ATTENTION)
def efficient_attention_backward(
    grad_out_: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    out: Any,
    logsumexp: Any,
    philox_seed: Any,
    philox_offset: Any,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    *_args: Any,
    **_options: Any,
) -> tuple[TensorMeta | None, ...]:
    """Gradients are laid out as (batch, length, heads, width)."""

    def gradient(tensor: Any) -> TensorMeta:
        shape = tuple(tensor.shape)
        return fresh(shape, tensor, stride=permuted_strides(shape, (3, 1, 2, 0)))

    of_mask = gradient_of_mask(attn_bias) if attn_bias is not None and grad_input_mask[3] else None
    return gradient(query), gradient(key), gradient(value), of_mask


def gradient_of_mask(mask: Any) -> TensorMeta:
    """Its rows are parts of rows that are padded to multiples of 16."""
    *leading, width = mask.shape
    return fresh(mask.shape, mask, stride=contiguous_strides((*leading, (width + 15) // 16 * 16)))


@shape_rule(*overloads("_efficient_attention_forward"), tags=ATTENTION)
def efficient_attention_of_rows(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    **_options: Any,
) -> Any:
    """Of GPUs. Tensors have the shape (batch, length, heads, width); sequences of several lengths are one batch."""
    batch, length, heads = tuple(query.shape)[:3]
    longest = length
    if cu_seqlens_q is not None:
        batch, longest = cu_seqlens_q.shape[0] - 1, max_seqlen_q
    padded = (longest + 31) // 32 * 32 if compute_log_sumexp else 0
    return (
        fresh((*query.shape[:3], value.shape[3]), query),
        fresh((batch, heads, padded), query, torch.float32),
        *_generator(query, "other"),
        longest,
        key.shape[1] if max_seqlen_k is None else max_seqlen_k,
    )


@shape_rule(*overloads("_efficient_attention_backward"), tags=ATTENTION)
def efficient_attention_of_rows_backward(
    grad_out_: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    out: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    logsumexp: Any,
    dropout_p: float,
    philox_seed: Any,
    philox_offset: Any,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    shared_storage_dqdkdv: bool = False,
    **_options: Any,
) -> tuple[TensorMeta, ...]:
    if shared_storage_dqdkdv:
        raise Unsupported("attention-gradients", "gradients of attention that share their memory are not compiled")
    of_mask = gradient_of_mask(bias) if bias is not None and bias_requires_grad else fresh((0,), query)
    return fresh(query.shape, query), fresh(key.shape, key), fresh(value.shape, value), of_mask


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


# nn.TransformerEncoderLayer calls this without gradients
shape_table(ATTENTION, {"_transformer_encoder_layer_fwd": lambda src, *_, **__: fresh(src.shape, src)})
