"""Whose memory a graph value may share when the graph runs eagerly. A question about graphs only."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

from .schema import op_info

aten = torch.ops.aten
# Operators whose result may be their argument's memory although the schema calls it fresh.
MAY_ALIAS = frozenset((aten._unsafe_view.default,))


def memory_root(node: fx.Node) -> fx.Node:
    """The earliest value that `node` is a view of."""
    while node.op == "call_function":
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or not _is_view(node if isinstance(node.target, OpOverload) else source):
            return node
        node = source
    return node


def output_memory(graph: fx.Graph) -> set[fx.Node]:
    """The values whose memory a graph returns, as they are or seen through views.

    A rewrite must not put an input, a constant or another output in the place of one of these.
    """
    output = next(iter(reversed(graph.nodes)))
    return {memory_root(node) for node in output.all_input_nodes}


def _is_view(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and (op_info(target).is_view or target in MAY_ALIAS)
