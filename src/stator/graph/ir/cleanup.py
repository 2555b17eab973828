"""Clean-up of a functional graph: operators that change nothing, equal operators, and what nobody uses.

Rewrites in place; never touches random operators, what keeps an output's memory its own, nor what as_strided is used
on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.prims.record import TensorMeta

from .memory import fixed_memory, memory_root
from .schema import draws

aten = torch.ops.aten

# Views that change nothing when the layout before and after is the same.
LAYOUT_OPERATORS = frozenset(
    (
        aten.view.default,
        aten._unsafe_view.default,
        aten._reshape_alias.default,
        aten.expand.default,
        aten.slice.Tensor,
        aten.permute.default,
        aten.transpose.int,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.as_strided.default,
        aten.alias.default,
        aten.detach.default,
    )
)
# Copies, which a functional graph does not need when the layout stays.
COPIES = frozenset((aten.clone.default, aten._to_copy.default))


def clean_up(graph: fx.Graph, *, copies_of_inputs: bool = False) -> None:
    """Remove dead code, operators without effect and repeated pure operators.

    copies_of_inputs: keep them. A program that copies an input may be about to write to it before the backward.
    """
    remove_dead(graph)
    protected = fixed_memory(graph)
    if copies_of_inputs:
        protected |= {node for node in graph.nodes if is_copy_of_input(node)}
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node in protected:
            continue
        replacement = node.args[0] if _changes_nothing(node) else _earlier_twin(node, seen)
        if replacement is not None:
            node.replace_all_uses_with(replacement, propagate_meta=False)
            graph.erase_node(node)


def is_copy_of_input(node: fx.Node) -> bool:
    return node.target is aten.clone.default and memory_root(node.all_input_nodes[0]).op == "placeholder"


def remove_dead(graph: fx.Graph) -> None:
    """Drop nodes that nobody uses, unless they check something or draw. (torch.fx would ask a table of operators with
    effects that holds more or less by what else was imported.)"""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op in ("call_function", "get_attr") and is_pure(node):
            graph.erase_node(node)


def is_pure(node: fx.Node) -> bool:
    """Whether leaving the node away is noticed only by those who use its result."""
    target = node.target
    if not isinstance(target, OpOverload):
        return True
    return bool(target._schema.returns) and not draws(target, node.args, node.kwargs)


def _changes_nothing(node: fx.Node) -> bool:
    if node.target in LAYOUT_OPERATORS or node.target in COPIES:
        source: Any = node.args[0]
        before, after = source.meta["val"], node.meta["val"]
        return same_layout(before, after)
    return False


def same_layout(first: TensorMeta, second: TensorMeta) -> bool:
    return (
        first.shape == second.shape
        and first.stride == second.stride
        and first.dtype is second.dtype
        and first.device == second.device
        and (first.offset == second.offset or second.view_of is None)
    )


def _earlier_twin(node: fx.Node, seen: dict[Any, fx.Node]) -> fx.Node | None:
    """An earlier node that computes the same, or None."""
    if not is_pure(node):
        return None
    try:
        key = (node.target, _key(node.args), _key(node.kwargs))
        earlier = seen.setdefault(key, node)
    except TypeError:  # an argument that cannot be hashed
        return None
    return None if earlier is node else earlier


def _key(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple([_key(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key(item)) for name, item in value.items()])
    # 1, 1.0 and True are equal in Python, and 0.0 equals -0.0
    return value if isinstance(value, fx.Node) else (type(value), repr(value) if type(value) is float else value)
