"""Attention on CPUs whose heads share keys and values in groups reads these once: the queries of a group become rows of
one head. Programs repeat the keys for each head, or leave that to the kernel, which reads them for each head."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from stator.prims.layout import contiguous_strides, permuted_strides
from stator.prims.record import TensorMeta

aten = torch.ops.aten

_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_ROWS_BEFORE_HEADS = (0, 2, 1, 3)


def share_heads(gm: fx.GraphModule) -> fx.GraphModule:
    """Regroup the heads of attention, in place."""
    for node in list(gm.graph.nodes):
        if node.target is _ATTENTION:
            _share(gm.graph, node)
    return gm


def _share(graph: fx.Graph, node: fx.Node) -> None:
    query, key, value, *options = node.args
    mask: Any = node.kwargs.get("attn_mask")
    if any(options) or any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users):
        return  # dropout, a causal mask by position, or a backward that reads the sums of rows
    result: TensorMeta = node.meta["val"][0]
    batch, heads, rows, width = result.shape
    sources = [_before_repetition(one, heads) for one in (key, value)]
    shared, of_values = (_meta(one).shape[1] for one in sources)
    if type(heads) is not int or type(shared) is not int or shared == heads or of_values != shared:
        return
    if mask is not None and (len(_meta(mask).shape) != 4 or (_is_for_all_heads(mask) and _are_many(rows))):
        return
    merged = (batch, shared, heads // shared * rows)
    with graph.inserting_before(node):
        queries = _reshaped(graph, query, (*merged, _meta(query).shape[3]))
        keys = [_first_repetition(graph, one) if len(_meta(one).shape) == 5 else one for one in sources]
        kwargs = dict(node.kwargs)
        if mask is not None:
            kwargs["attn_mask"] = _mask_of_groups(graph, mask, shared, heads // shared)
        attended = graph.call_function(_ATTENTION, (queries, *keys), kwargs)
        of_groups = _contiguous(result, (*merged, width))
        sums = replace(node.meta["val"][1], shape=merged, stride=permuted_strides(merged, (1, 2, 0)))
        attended.meta.update(node.meta, val=(of_groups, sums))
        made = graph.call_function(operator.getitem, (attended, 0))
        made.meta["val"] = of_groups
        made = _laid_out(graph, _reshaped(graph, made, result.shape), result)
    for user in list(node.users):
        user.replace_all_uses_with(made)
        graph.erase_node(user)
    graph.erase_node(node)


def _before_repetition(node: Any, heads: Any) -> Any:
    """The expanded keys [batch, shared heads, repetitions, keys, width] that are copied as keys of this many heads;
    other keys themselves."""
    if node.target not in _RESHAPES or node.args[0].target is not aten.clone.default:
        return node
    expanded = node.args[0].args[0]
    if expanded.target is not aten.expand.default:
        return node
    shape, stride = _meta(expanded).shape, _meta(expanded).stride
    if len(shape) != 5 or [dim for dim, step in enumerate(stride) if step == 0] != [2]:
        return node
    return expanded if _meta(node).shape == (shape[0], heads, *shape[3:]) else node


def _is_for_all_heads(mask: fx.Node) -> bool:
    return bool(_meta(mask).shape[1] == 1 or _meta(mask).stride[1] == 0)


def _are_many(rows: Any) -> bool:
    """Whether copies of a mask, one for each head of a group, are large. Of a changing number, one row is the rule."""
    return isinstance(rows, int) and rows > 1


def _mask_of_groups(graph: fx.Graph, mask: fx.Node, shared: int, repeats: int) -> fx.Node:
    """The mask of heads that became rows."""
    batch, _, rows, keys = _meta(mask).shape
    if not _is_for_all_heads(mask):
        return _reshaped(graph, mask, (batch, shared, repeats * rows, keys))
    steps = _meta(mask).stride
    one = graph.call_function(aten.slice.Tensor, (mask, 1, 0, 1))
    one.meta["val"] = replace(_meta(mask), shape=(batch, 1, rows, keys))
    each = graph.call_function(aten.expand.default, (one, [batch, repeats, rows, keys]))
    each.meta["val"] = replace(_meta(mask), shape=(batch, repeats, rows, keys), stride=(steps[0], 0, *steps[2:]))
    return _reshaped(graph, each, (batch, 1, repeats * rows, keys))


def _meta(node: Any) -> TensorMeta:
    found: TensorMeta = node.meta["val"]
    return found


def _first_repetition(graph: fx.Graph, expanded: fx.Node) -> fx.Node:
    meta = _meta(expanded)
    made = graph.call_function(aten.select.int, (expanded, 2, 0))
    made.meta["val"] = replace(meta, shape=_without(meta.shape, 2), stride=_without(meta.stride, 2))
    return made


def _without(sizes: Sequence[Any], dim: int) -> tuple[Any, ...]:
    return (*sizes[:dim], *sizes[dim + 1 :])


def _reshaped(graph: fx.Graph, node: Any, shape: tuple[Any, ...]) -> fx.Node:
    made = graph.call_function(aten.reshape.default, (node, list(shape)))
    made.meta["val"] = _contiguous(_meta(node), shape)
    return made


def _contiguous(meta: TensorMeta, shape: tuple[Any, ...]) -> TensorMeta:
    return replace(meta, shape=shape, stride=contiguous_strides(shape), offset=0)


def _laid_out(graph: fx.Graph, node: fx.Node, wanted: TensorMeta) -> fx.Node:
    """A contiguous result in the layout of the result that it replaces, in which rows may come before heads."""
    if wanted.stride == _meta(node).stride:
        return node
    shape, stride = (tuple(sizes[dim] for dim in _ROWS_BEFORE_HEADS) for sizes in (wanted.shape, _meta(node).stride))
    turned = graph.call_function(aten.permute.default, (node, list(_ROWS_BEFORE_HEADS)))
    turned.meta["val"] = replace(wanted, shape=shape, stride=stride)
    copied = graph.call_function(aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})
    copied.meta["val"] = _contiguous(wanted, shape)
    made = graph.call_function(aten.permute.default, (copied, list(_ROWS_BEFORE_HEADS)))
    made.meta["val"] = replace(wanted, stride=tuple(_meta(copied).stride[dim] for dim in _ROWS_BEFORE_HEADS))
    return made
