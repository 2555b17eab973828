"""Merges equal calls with equal arguments."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import fx

from stator.graph.ir.memory import output_memory
from stator.graph.ir.schema import has_effects


def merge_common_subexpressions(gm: fx.GraphModule) -> fx.GraphModule:
    """Replace each repeated call by the first. Random calls and results of the graph stay as they are."""
    seen: dict[Hashable, fx.Node] = {}
    returned = output_memory(gm.graph)
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node in returned or has_effects(node.target, node.args, node.kwargs):
            continue
        key = _key(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node or any(user.op == "output" for user in node.users):
            continue
        node.replace_all_uses_with(first)
        gm.graph.erase_node(node)
    return gm


def _key(node: fx.Node) -> Hashable | None:
    try:
        key = (node.target, _hashable(node.args), _hashable(node.kwargs), tuple(node.meta.get("binds", ())))
        hash(key)
    except TypeError:
        return None
    return key


def _hashable(value: Any) -> Hashable:
    """Arguments as a key. Numbers carry their type: 1, 1.0 and True are equal but give results of different dtypes."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, tuple | list):
        return tuple([_hashable(item) for item in value])
    if isinstance(value, dict):
        return tuple([(name, _hashable(item)) for name, item in sorted(value.items())])
    if isinstance(value, int | float | complex):
        return type(value), repr(value)
    return value
