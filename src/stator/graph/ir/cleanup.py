"""Clean-up of a functional graph: removes operators without effect, repeated operators and unused ones, in place.

Random operators, copies that keep an output's memory separate, and arguments of as_strided are never touched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.prims.layout import always_equal
from stator.prims.record import TensorMeta
from stator.shapes.sym_node import to_expression

from .memory import fixed_memory, memory_root
from .schema import has_effects
from .size_bindings import SYMBOLIC, symbols_of

aten = torch.ops.aten

# Views without effect if the layout before and after is equal.
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
# Copies, redundant in a functional graph if the layout stays equal.
COPIES = frozenset((aten.clone.default, aten._to_copy.default))


def clean_up(graph: fx.Graph, *, copies_of_inputs: bool = False) -> None:
    """Remove dead code, operators without effect and repeated pure operators.

    copies_of_inputs: keep copies of inputs, because the program may write to the input before the backward runs.
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
    """Remove unused nodes, except checks and random operators. (torch.fx would consult a table of effectful operators
    whose contents depend on the imported modules.)"""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op in ("call_function", "get_attr") and is_pure(node):
            if "binds" in node.meta and _is_asked_for_sizes(graph, node):
                continue
            graph.erase_node(node)


def _is_asked_for_sizes(graph: fx.Graph, node: fx.Node) -> bool:
    """Whether other nodes need symbols that only this node binds."""
    own = set(node.meta["binds"])
    others = [other for other in graph.nodes if other is not node]
    own -= {symbol for other in others for symbol in other.meta.get("binds", ())}
    return any(own & symbols_of((other.args, other.kwargs, other.meta.get("val"))) for other in others)


def is_pure(node: fx.Node) -> bool:
    """Whether removing an unused node changes nothing."""
    target = node.target
    if not isinstance(target, OpOverload):
        return True
    return bool(target._schema.returns) and not has_effects(target, node.args, node.kwargs)


def _changes_nothing(node: fx.Node) -> bool:
    if node.target in LAYOUT_OPERATORS or node.target in COPIES:
        source: Any = node.args[0]
        before, after = source.meta["val"], node.meta["val"]
        return same_layout(before, after)
    return False


def same_layout(first: TensorMeta, second: TensorMeta) -> bool:
    return (
        first.dtype is second.dtype
        and first.device == second.device
        and always_equal((*first.shape, *first.stride), (*second.shape, *second.stride))
        and (second.view_of is None or always_equal((first.offset,), (second.offset,)))
    )


def _earlier_twin(node: fx.Node, seen: dict[Any, fx.Node]) -> fx.Node | None:
    """Return an earlier node with equal target and arguments, or None."""
    key = call_key(node.target, node.args, node.kwargs) if is_pure(node) else None
    if key is None:
        return None
    earlier = seen.setdefault((key, tuple(node.meta.get("binds", ()))), node)
    return None if earlier is node else earlier


def call_key(target: Any, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """Equal for calls of one function with equal arguments. None if an argument cannot be hashed."""
    key = target, _key(args), _key(kwargs)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _key(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple([_key(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _key(item)) for name, item in value.items()])
    if isinstance(value, fx.Node):
        return value
    # 1, 1.0 and True are equal in Python, and 0.0 equals -0.0.
    return type(value), repr(value) if type(value) is float else to_expression(value) if type(
        value
    ) in SYMBOLIC else value
