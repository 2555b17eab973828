"""Gradients of tables that are used elsewhere too: rows are added to the other gradient, not to zeros first."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from stator.graph.cleanup import remove_dead
from stator.graph.memory import output_memory
from stator.prims.record import TensorMeta

aten = torch.ops.aten


def accumulate_into_sums(gm: fx.GraphModule) -> fx.GraphModule:
    """`y + index_put(zeros, indices, values, accumulate=True)` becomes `index_put(y, indices, values, True)`."""
    returned = output_memory(gm.graph)
    for node in list(gm.graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        for put, other in (node.args, reversed(node.args)):
            if _adds_rows_to_zeros(put) and put not in returned and _same_layout(put, other, node):
                with gm.graph.inserting_before(node):
                    sum_ = gm.graph.call_function(aten.index_put.default, (other, *put.args[1:]))
                sum_.meta.update(node.meta)
                node.replace_all_uses_with(sum_)
                gm.graph.erase_node(node)
                break
    remove_dead(gm.graph)
    return gm


def _adds_rows_to_zeros(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.target is not aten.index_put.default or len(node.users) != 1:
        return False
    zeros = node.args[0]
    return (
        node.args[3:] == (True,)
        and isinstance(zeros, fx.Node)
        and zeros.target in (aten.full.default, aten.zeros.default)
        and (zeros.target is aten.zeros.default or bool(zeros.args[1] == 0))
    )


def _same_layout(put: fx.Node, other: Any, total: fx.Node) -> bool:
    if not isinstance(other, fx.Node) or other is put:
        return False
    metas = [node.meta.get("val") for node in (put, other, total)]
    described = {(meta.shape, meta.dtype, meta.device) for meta in metas if isinstance(meta, TensorMeta)}
    return len(described) == 1 and all(isinstance(meta, TensorMeta) for meta in metas)
