"""A backward graph for some of its tangents, without another trace: a model returns a loss and what leads to it, and
its backward begins at the loss alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.graph.fake.fake_mode import FakeMode, FakeTensor
from stator.graph.ir.aten_graph import AtenGraph, LazyGraphModule
from stator.graph.ir.memory import addresses_storage
from stator.prims.layout import surely
from stator.prims.record import TensorMeta

aten = torch.ops.aten


def without_tangents(backward: fx.GraphModule, saved_count: int, kept: Sequence[bool]) -> fx.GraphModule | None:
    """The backward without those tangents that are not `kept`. None if the program has to be traced again.

    Autograd adds a tangent to the gradient of its value that comes from other tangents. Without the tangent, that
    gradient is the sum. Anything else that the graph does with a missing tangent is traced again: gradients that only
    it leads to are None then, and other formulas may apply. The sum may be laid out otherwise than its other summand:
    layouts are then inferred anew behind it.
    """
    nodes = backward.graph.nodes
    tangents = [node for node in nodes if node.op == "placeholder"][saved_count : saved_count + len(kept)]
    led_to = {node for node, one in zip(tangents, kept, strict=True) if one}  # nodes that other tangents lead to
    absent = set(tangents) - led_to
    graph, made, mode = AtenGraph(), dict[fx.Node, fx.Node](), FakeMode()
    moved = set[fx.Node]()  # nodes in whose place others stand, laid out otherwise
    for node in nodes:
        if node in absent:
            continue
        read = node.all_input_nodes
        if not absent.isdisjoint(read):
            rest = read[read[0] in absent] if len(read) == 2 else None
            added = node.target is aten.add.Tensor and not node.kwargs
            if rest is None or rest not in led_to or not added:
                return None
            made[node] = made[rest]
            led_to.add(node)
            one, other = made[rest].meta["val"], node.meta["val"]
            if not _alike(one, other):
                if one.dtype is not other.dtype or not _has_numbers(one) or one.shape != other.shape:
                    return None
                moved.add(node)
            continue
        if not led_to.isdisjoint(read):
            led_to.add(node)
        made[node] = graph.node_copy(node, made.__getitem__)
        if not moved.isdisjoint(read):
            if not _infer_layout(mode, node, made[node]):
                return None
            if made[node].meta["val"] != node.meta["val"]:
                moved.add(node)
    module = LazyGraphModule(backward, graph, "backward")
    inputs = [at for at in backward.meta["held"] if at < saved_count]
    held = (*inputs, *range(saved_count, saved_count + sum(kept)))
    module.meta = {"part": "backward", "again": backward.meta["again"], "held": held}
    return module


def _alike(one: TensorMeta, other: TensorMeta) -> bool:
    numbers = zip((*one.shape, *one.stride), (*other.shape, *other.stride), strict=True)
    return one.dtype is other.dtype and all(surely(first == second) for first, second in numbers)


def _infer_layout(mode: FakeMode, node: fx.Node, copied: fx.Node) -> bool:
    """Describe the copy of a node by the layouts of what it now reads. False where these may change values, or what
    leaves the graph."""
    if node.target is operator.getitem:
        copied.meta["val"] = copied.args[0].meta["val"][copied.args[1]]  # type: ignore[union-attr, index]
        return True
    metas = [one.meta.get("val") for one in copied.all_input_nodes]
    if not isinstance(node.target, OpOverload) or addresses_storage(node.target) or not all(map(_has_numbers, metas)):
        return False
    try:
        found = _result(mode, copied)
    except RuntimeError:  # as a view that these strides do not allow
        if node.target is not aten.view.default:
            return False
        _reshape(mode, copied)
        found = _result(mode, copied)
    before, now = pytree.tree_leaves(node.meta["val"]), pytree.tree_leaves(found)
    if [_without_layout(one) for one in before] != [_without_layout(one) for one in now]:
        return False
    copied.meta["val"] = found
    return True


def _result(mode: FakeMode, node: fx.Node) -> Any:
    assert isinstance(node.target, OpOverload)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: mode.make(one.meta["val"]))
    return pytree.tree_map_only(FakeTensor, lambda fake: fake.meta, mode.dispatch(node.target, args, kwargs))


def _reshape(mode: FakeMode, view: fx.Node) -> None:
    """Let the node view a copy, as autograd, which reshapes the gradients of views, would have done."""
    with view.graph.inserting_before(view):
        copy = view.graph.call_function(aten.clone.default, view.args[:1], {"memory_format": torch.contiguous_format})
    copy.meta["val"] = _result(mode, copy)
    view.target, view.args = aten._unsafe_view.default, (copy, view.args[1])


def _has_numbers(value: Any) -> bool:
    return isinstance(value, TensorMeta) and all(isinstance(one, int) for one in (*value.shape, *value.stride))


def _without_layout(value: Any) -> Any:
    return (value.shape, value.dtype, value.device) if isinstance(value, TensorMeta) else value
