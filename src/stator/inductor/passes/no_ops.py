"""Drops no-ops: nodes whose result equals their input in values, dtype and layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from stator.base.registry import Registry
from stator.graph.ir.memory import fixed_memory
from stator.prims.record import TensorMeta

aten = torch.ops.aten

# Each rule receives a node, and returns True when the result equals the first argument, provided their metas agree.
_rules: Registry[Any, Callable[[fx.Node], bool]] = Registry("no-op rule")


def drop_no_ops(gm: fx.GraphModule) -> fx.GraphModule:
    """Replace each no-op by its input, unless the graph returns its memory or addresses its storage."""
    returned = fixed_memory(gm.graph)
    for node in list(gm.graph.nodes):
        rule = _rules.get(node.target)
        if node in returned or rule is None or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        source = node.args[0]
        if not _same_meta(source, node) or any(user.op == "output" for user in node.users) or not rule(node):
            continue
        node.replace_all_uses_with(source)
        gm.graph.erase_node(node)
    return gm


def _same_meta(first: fx.Node, second: fx.Node) -> bool:
    a, b = first.meta.get("val"), second.meta.get("val")
    if not isinstance(a, TensorMeta) or not isinstance(b, TensorMeta):
        return False
    return (a.shape, a.stride, a.dtype, a.device) == (b.shape, b.stride, b.dtype, b.device)


@_rules.register(
    aten.alias.default,
    aten.detach.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.expand.default,
    aten.permute.default,
    aten.slice.Tensor,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.lift_fresh.default,
)
def _relabelled(node: fx.Node) -> bool:
    """A view with equal shape and strides shows equal elements, except for slices that start later and flips."""
    if node.target is aten.slice.Tensor:
        return _starts_at_zero(node)
    if node.target is aten.permute.default:
        return tuple(node.args[1]) == tuple(range(len(node.args[1])))  # type: ignore[arg-type]
    return True


def _starts_at_zero(node: fx.Node) -> bool:
    start = node.args[2] if len(node.args) > 2 else node.kwargs.get("start")
    step = node.args[4] if len(node.args) > 4 else node.kwargs.get("step", 1)
    return bool(start in (None, 0) and step == 1)


@_rules.register(aten.clone.default, aten.contiguous.default, aten._to_copy.default)
def _copied(node: fx.Node) -> bool:
    return True


@_rules.register(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.pow.Tensor_Scalar)
def _by_one(node: fx.Node) -> bool:
    return _is_number(node.args[1], 1)


@_rules.register(aten.sub.Tensor, aten.sub.Scalar)
def _minus_zero(node: fx.Node) -> bool:
    """-0.0 - -0.0 is 0.0, and so is -0.0 - factor * 0.0 for a negative factor."""
    number = node.args[1]
    if not node.meta["val"].dtype.is_floating_point:
        return _is_number(number, 0)
    return _is_number(number, 0) and math.copysign(1, number) > 0 and len(node.args) == 2 and not node.kwargs  # type: ignore[arg-type]


@_rules.register(aten.add.Tensor, aten.add.Scalar)
def _plus_zero(node: fx.Node) -> bool:
    """-0.0 + 0.0 is 0.0, so the rule holds for integers alone."""
    return not node.meta["val"].dtype.is_floating_point and _is_number(node.args[1], 0)


def _is_number(value: Any, expected: float) -> bool:
    return isinstance(value, int | float) and bool(value == expected)
