"""Gradients of attention by `stator::attention_gradients`, where a kernel of the compiler behind this computes them.

That operator reads neither the result of the forward nor its logarithms: the forward keeps less, and may be any kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from stator.prims.operators.attention_gradients import attention_gradients
from stator.prims.record import TensorMeta

aten = torch.ops.aten
# By operator, its positional arguments
CALLS: dict[Any, tuple[str, ...]] = {
    aten._scaled_dot_product_efficient_attention_backward.default: (
        *("tangent", "query", "key", "value", "bias", "out", "logsumexp", "seed", "offset"),
        *("dropout", "needed", "is_causal"),
    ),
    aten._scaled_dot_product_cudnn_attention_backward.default: (
        *("tangent", "query", "key", "value", "out", "logsumexp", "seed", "offset", "bias"),
        *("starts", "starts_of_keys", "rows", "count", "dropout", "is_causal"),
    ),
    aten._scaled_dot_product_flash_attention_backward.default: (
        *("tangent", "query", "key", "value", "out", "logsumexp", "starts", "starts_of_keys", "rows", "count"),
        *("dropout", "is_causal", "seed", "offset"),
    ),
}
# Whether a kernel of our own computes the gradients, for (batch of heads, queries, keys, width of a key, of a value)
GradientRule = Callable[[torch.device, torch.dtype, tuple[int, int, int, int, int]], bool]


def shorten_attention_gradients(gm: fx.GraphModule, rule: GradientRule) -> fx.GraphModule:
    """Replace calls that compute gradients of attention, in place, where `rule` says so; returns `gm`. Every node needs
    meta["val"]."""
    found = [node for node in gm.graph.nodes if node.target in CALLS and _replace(node, rule)]
    if found:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return gm


def _replace(node: fx.Node, rule: GradientRule) -> bool:
    names: Any = CALLS[node.target]
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    tangent, query, key, value = [given[name] for name in ("tangent", "query", "key", "value")]
    bias = given.get("bias")
    metas = [one.meta["val"] for one in (query, key, value)]
    if given["dropout"] or not is_plain(metas, None if bias is None else bias.meta["val"]):
        return False
    meta = metas[0]
    shape, (count, width) = meta.shape, metas[2].shape[2:]
    if not rule(meta.device, meta.dtype, (shape[0] * shape[1], shape[2], count, shape[3], width)):
        return False
    if tangent.target is aten.copy.default:  # to the layout of the result, as cuDNN's kernel wants it
        tangent = tangent.args[1]
    scale = given.get("scale")
    by_rows = node.target is aten._scaled_dot_product_efficient_attention_backward.default
    of_bias = bias is not None and by_rows and given["needed"][3]
    if bias is not None and of_bias and tuple(bias.meta["val"].shape) != (*shape[:3], count):
        return False
    options = (
        of_bias,
        bool(given.get("is_causal")),
        1 / math.sqrt(shape[3]) if scale is None else float(scale),
        by_rows,
        True,
    )
    with node.graph.inserting_before(node):
        made = node.graph.call_function(attention_gradients, (tangent, query, key, value, bias, *options))
    made.meta.update(node.meta)
    found = node.meta["val"]
    made.meta["val"] = (*found[:3], found[3] if of_bias else TensorMeta((0,), (1,), meta.dtype, meta.device))
    node.replace_all_uses_with(made, propagate_meta=False)
    node.graph.erase_node(node)
    return True


def is_plain(sides: Sequence[Any], bias: Any) -> bool:
    """Whether the kernel reads query, key, value and bias as they lie, by meta: all sizes known, elements of a row
    side by side at multiples of 16 bytes."""
    for meta in sides:
        numbers = (*meta.shape, *meta.stride, meta.offset)
        if not all(type(number) is int for number in numbers) or 0 in meta.shape or meta.dtype is not sides[0].dtype:
            return False
        if meta.stride[3] != 1 or any(number % 8 for number in (*meta.stride[:3], meta.offset)):
            return False
    query, key, value = [meta.shape for meta in sides]
    if query[0] != key[0] or key[:2] != value[:2] or query[1] % key[1]:
        return False
    scores = (*query[:3], key[2])
    return bias is None or (
        bias.dtype.is_floating_point
        and len(bias.shape) == 4
        and all(size in (1, whole) for size, whole in zip(bias.shape, scores, strict=True))
    )
