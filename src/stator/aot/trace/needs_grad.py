"""Decides whether autograd would record anything when a graph runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from stator.graph.fake.wrapper_subclasses import is_wrapper
from stator.graph.ir.captured_tensors import captured_tensors

_GRAD_SWITCHES = (torch.enable_grad, torch.set_grad_enabled, torch._C._set_grad_enabled)


def needs_grad(gm: fx.GraphModule, example_inputs: Sequence[object]) -> bool:
    """Whether running `gm` on these inputs, in the present grad mode, could yield tensors that require grad.

    True where an input or a captured tensor requires grad while grad mode is on (or switched on inside), where the
    graph itself asks for a tensor that requires grad or makes a wrapper subclass of this kind, and where it transforms
    a function by autograd.
    """
    if any(_asks_for_grad(node) or _is_transform(node.target) for node in gm.graph.nodes):
        return True
    if not any(_nodes_with_grad_mode(gm)):
        return False
    tensors = [*example_inputs, *captured_tensors(gm, example_inputs)]
    return any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors)


def _asks_for_grad(node: fx.Node) -> bool:
    made = node.meta.get("example_value") if node.op == "call_function" else None
    if isinstance(made, torch.Tensor) and is_wrapper(made) and made.is_leaf and made.requires_grad:
        return True
    if node.op == "call_method" and node.target == "requires_grad_":
        return not (node.args[1:] == (False,) or node.kwargs.get("requires_grad") is False)
    return node.op in ("call_function", "call_method") and bool(node.kwargs.get("requires_grad"))


def _nodes_with_grad_mode(gm: fx.GraphModule) -> Iterator[bool]:
    """For each computing node, whether grad mode is on when it runs."""
    grad_mode = torch.is_grad_enabled()
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in _GRAD_SWITCHES:
            grad_mode = node.target is torch.enable_grad or bool(node.args[:1] != (False,))
        elif node.op.startswith("call_"):
            yield grad_mode


def _is_transform(target: object) -> bool:
    """See graph.transformed."""
    return getattr(getattr(target, "graph_callable", None), "uses_autograd", False)
