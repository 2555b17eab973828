"""Which memory a graph value may share when the graph runs eagerly. Looks at graphs only."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from .schema import op_info

aten = torch.ops.aten
# Operators whose result may alias their argument although the schema calls it fresh.
MAY_ALIAS = frozenset((aten._unsafe_view.default,))


def memory_root(node: fx.Node) -> fx.Node:
    """Return the earliest value that `node` is a view of."""
    while node.op == "call_function":
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or not _is_view(node if isinstance(node.target, OpOverload) else source):
            return node
        node = source
    return node


def output_memory(graph: fx.Graph) -> set[fx.Node]:
    """Return the values whose memory a graph returns, directly or through views, and the operators with several results
    that produce one of them. A rewrite must not replace one of these by an input, a constant or another output."""
    output = next(iter(reversed(graph.nodes)))
    roots = {memory_root(node) for node in output.all_input_nodes}
    return roots | {maker for node in roots for maker in _makers(node)}


@cache
def addresses_storage(target: Any) -> bool:
    """Whether the operator (as_strided and its kin) counts from the beginning of its argument's storage. An equal
    tensor may replace that argument only if it lies at the same offset of its storage."""
    schema = getattr(target, "_schema", None)
    return schema is not None and any(argument.name == "storage_offset" for argument in schema.arguments)


def fixed_memory(graph: fx.Graph) -> set[fx.Node]:
    """Return the values that a rewrite must not replace by others of equal layout: values in returned memory, and
    values whose storage is addressed."""
    addressed = {source for node in graph.nodes if addresses_storage(node.target) for source in node.all_input_nodes}
    return output_memory(graph) | addressed


def _makers(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the operator with several results that this node selects from, and the selections in between."""
    while node.target is operator.getitem and isinstance(source := node.args[0], fx.Node):
        yield source
        node = source


def _is_view(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and (op_info(target).is_view or target in MAY_ALIAS)
