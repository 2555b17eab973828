"""Writes a batch of one product by a matrix as a product of two matrices, for which lowering has more choices: packed
matrices, and loops behind them. `nn.Linear` makes such batches where rows of its input are not next to each other."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from stator.prims.record import TensorMeta

aten = torch.ops.aten

_VIEWS = (aten.expand.default, aten.unsqueeze.default, aten.view.default)


def multiply_single_batches(gm: fx.GraphModule) -> fx.GraphModule:
    """Replace such products on CPUs, where this was measured, in place."""
    for node in list(gm.graph.nodes):
        if node.target is aten.bmm.default and _is_single(node.meta["val"]) and _is_matrix(node.args[1]):
            _as_matrices(gm.graph, node)
    return gm


def _is_single(result: TensorMeta) -> bool:
    return bool(result.shape[0] == 1 and result.device.type == "cpu")


def _is_matrix(node: fx.Node) -> bool:
    """Whether views of a tensor with two dimensions lead to the operand [1, inner, columns]."""
    while len(node.meta["val"].shape) > 2 and node.target in _VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    return len(node.meta["val"].shape) == 2


def _as_matrices(graph: fx.Graph, node: fx.Node) -> None:
    with graph.inserting_before(node):
        operands = []
        for operand in node.args:
            assert isinstance(operand, fx.Node)
            matrix = graph.call_function(aten.squeeze.dim, (operand, 0))
            meta: TensorMeta = operand.meta["val"]
            matrix.meta["val"] = replace(meta, shape=meta.shape[1:], stride=meta.stride[1:])
            operands.append(matrix)
        product = graph.call_function(aten.mm.default, tuple(operands))
        result: TensorMeta = node.meta["val"]
        product.meta.update(node.meta, val=replace(result, shape=result.shape[1:], stride=result.stride[1:]))
        batch = graph.call_function(aten.unsqueeze.default, (product, 0))
        batch.meta.update(node.meta)
    node.replace_all_uses_with(batch)
    graph.erase_node(node)
