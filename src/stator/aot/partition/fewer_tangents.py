"""A backward graph for some of its tangents, without another trace: a model returns a loss and what leads to it, and
its backward begins at the loss alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from stator.graph.ir.aten_graph import AtenGraph, LazyGraphModule
from stator.prims.layout import surely
from stator.prims.record import TensorMeta


def without_tangents(backward: fx.GraphModule, saved_count: int, kept: Sequence[bool]) -> fx.GraphModule | None:
    """The backward without those tangents that are not `kept`. None if the program has to be traced again.

    Autograd adds a tangent to the gradient of its value that comes from other tangents. Without the tangent, that
    gradient is the sum. Anything else that the graph does with a missing tangent is traced again: gradients that only
    it leads to are None then, and other formulas may apply.
    """
    nodes = backward.graph.nodes
    tangents = [node for node in nodes if node.op == "placeholder"][saved_count : saved_count + len(kept)]
    led_to = {node for node, one in zip(tangents, kept, strict=True) if one}  # nodes that other tangents lead to
    absent = set(tangents) - led_to
    graph, made = AtenGraph(), dict[fx.Node, fx.Node]()
    for node in nodes:
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
        made[node] = graph.node_copy(node, made.__getitem__)
    module = LazyGraphModule(backward, graph, "backward")
    inputs = [at for at in backward.meta["held"] if at < saved_count]
    held = (*inputs, *range(saved_count, saved_count + sum(kept)))
    module.meta = {"part": "backward", "again": backward.meta["again"], "held": held}
    return module


def _alike(one: TensorMeta, other: TensorMeta) -> bool:
    numbers = zip((*one.shape, *one.stride), (*other.shape, *other.stride), strict=True)
    return one.dtype is other.dtype and all(surely(first == second) for first, second in numbers)
