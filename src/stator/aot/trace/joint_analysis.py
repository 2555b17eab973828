"""What a joint graph tells of its inputs and values: which are overwritten without harm.

Facts of the graph only: nothing is traced, divided or run here.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from .joint import Joint


def overwritten(joint: Joint) -> frozenset[int]:
    """Inputs that are written to past autograd, and whose old contents no gradient depends on: running statistics."""
    output = next(iter(reversed(joint.graph.graph.nodes)))
    needed: set[fx.Node] = set()
    todo = [node for node in output.args[0][joint.value_count :] if isinstance(node, fx.Node)]  # type: ignore[index]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += _inputs_of(node)
    placeholders = [node for node in joint.graph.graph.nodes if node.op == "placeholder"]
    differentiable = set(joint.differentiable)
    return frozenset(
        index
        for index, position in joint.traced.mutated
        if position not in differentiable and placeholders[index] not in needed
    )


def _inputs_of(node: fx.Node) -> list[fx.Node]:
    """What a node depends on. Of batch norm in training all but the new statistics depends on the batch alone."""
    if node.target is operator.getitem and node.args[1] in (0, 1, 2):
        source: Any = node.args[0]
        if source.target is torch.ops.aten._native_batch_norm_legit_functional.default and source.args[5]:
            return [part for part in source.args[:3] if isinstance(part, fx.Node)]
    return node.all_input_nodes
