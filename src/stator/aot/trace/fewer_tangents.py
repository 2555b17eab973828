"""A joint graph for some of its tangents, without another trace: a model returns a loss and what leads to it, and its
backward begins at the loss alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import fx

from stator.graph.ir.aten_graph import AtenGraph, LazyGraphModule
from stator.prims.layout import surely
from stator.prims.record import TensorMeta

from .joint import Joint


def without_tangents(joint: Joint, positions: Collection[int]) -> Joint | None:
    """The joint graph with tangents for the values at `positions` alone. None if it has to be traced again.

    Autograd adds a tangent to the gradient of its value that comes from other tangents. Without the tangent, that
    gradient is the sum. Anything else that the graph does with a missing tangent is traced again: gradients that only
    it leads to are None then, and other formulas may apply.
    """
    graph = joint.graph.graph
    given = [node for node in graph.nodes if node.op == "placeholder"][-len(joint.tangents) :]
    absent = {node for node, at in zip(given, joint.tangents, strict=True) if at not in positions}
    if not all(at in positions or at in joint.summed for at in joint.tangents):
        return None
    led_to = set(given) - absent  # nodes that other tangents lead to
    found, made = AtenGraph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node in absent:
            continue
        read = node.all_input_nodes
        if not absent.isdisjoint(read):
            rest = read[read[0] in absent] if len(read) == 2 else None
            added = node.target is torch.ops.aten.add.Tensor and not node.kwargs
            if rest is None or rest not in led_to or not added or not _alike(rest.meta["val"], node.meta["val"]):
                return None
            made[node] = made[rest]
            led_to.add(node)
            continue
        if not led_to.isdisjoint(read):
            led_to.add(node)
        made[node] = found.node_copy(node, made.__getitem__)
    tangents = tuple([at for at in joint.tangents if at in positions])
    return replace(joint, graph=LazyGraphModule(joint.graph, found, "AtenGraph"), tangents=tangents)


def _alike(one: TensorMeta, other: TensorMeta) -> bool:
    numbers = zip((*one.shape, *one.stride), (*other.shape, *other.stride), strict=True)
    return one.dtype is other.dtype and all(surely(first == second) for first, second in numbers)
