"""Converts values to pytrees of tensors and constants, and back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stator.dynamo.graph.subgraphs import reachable
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, is_open
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.subgraphs.function_transforms import Leaf


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A leaf of a tree that is neither tensor nor constant."""

    value: Value


def tree_of(context: CaptureContext, value: Value, leaves: list[TensorValue]) -> Any:
    """The tree of an object, with `Leaf`s for its tensors, which are appended to `leaves`."""
    value = context.realized(value)
    if isinstance(value, TensorValue):
        leaves.append(value)
        return Leaf(len(leaves) - 1)
    if is_open(value):
        return Opaque(value)
    if isinstance(value, (ConstantValue, SymbolicNumber)):
        return value.constant()
    if isinstance(value, TupleValue):
        items = [tree_of(context, item, leaves) for item in value.items]
        return value.cls(*items) if hasattr(value.cls, "_fields") else tuple(items)
    if isinstance(value, ListValue) and value.cls is list:
        return [tree_of(context, item, leaves) for item in value.items]
    if isinstance(value, DictValue) and value.cls in (dict, OrderedDict):
        return value.cls((key.constant(), tree_of(context, item, leaves)) for key, item in value.items(context))
    inside = reachable((value,)).values()
    if value.python_type(context) in pytree.SUPPORTED_NODES and any(isinstance(one, TensorValue) for one in inside):
        raise unsupported("function-transform", f"{value.describe(context)} that holds tensors")
    return Opaque(value)


def value_of(context: CaptureContext, tree: Any, leaves: list[Value]) -> Value:
    """The object of a tree: `leaves` replace its `Leaf`s."""
    if isinstance(tree, Leaf):
        return leaves[tree.index]
    if isinstance(tree, Opaque):
        return tree.value
    maker = _MAKERS.get(type(tree))
    if maker is not None:
        return maker(context, tree, leaves)
    if isinstance(tree, tuple):
        return TupleValue([value_of(context, item, leaves) for item in tree], cls=type(tree))
    return context.wrap_result(tree, "a leaf of a transformed function's result")


def _list(context: CaptureContext, tree: list[Any], leaves: list[Value]) -> Value:
    return ListValue([value_of(context, item, leaves) for item in tree])


def _dict(context: CaptureContext, tree: dict[Any, Any], leaves: list[Value]) -> Value:
    made = DictValue({}, cls=type(tree))
    for key, item in tree.items():
        made.put(context, ConstantValue(key), value_of(context, item, leaves))
    return made


_MAKERS: dict[type, Callable[[Any, Any, list[Value]], Value]] = {list: _list, dict: _dict, OrderedDict: _dict}


def _fixed(leaf: Opaque) -> Any:
    return leaf.value.constant() if type(leaf.value) is SymbolicNumber and leaf.value.is_constant() else leaf


def constant_tree(context: CaptureContext, value: Value, what: str) -> Any:
    """An option such as `in_dims`: containers of constants."""
    leaves: list[TensorValue] = []
    tree = pytree.tree_map_only(Opaque, _fixed, tree_of(context, value, leaves))
    if leaves or any(isinstance(leaf, (Opaque, torch.Tensor)) for leaf in pytree.tree_leaves(tree)):
        raise unsupported("not-constant", f"{what} must be made of constants")
    return tree
