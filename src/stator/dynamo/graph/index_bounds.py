"""Bounds of the indices that a graph computes: indices from `topk`, `sort`, `argmax` and the like lie inside the
searched dimension. data_dependent_errors.py uses the bounds.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from stator.graph.fake.fake_tensor import FakeTensor

# The position of the dimension's argument and its default (None: all dimensions; "": the result is no index).
_CHOOSING: Mapping[str, tuple[int, Any]] = {
    "argmax": (1, None),
    "argmin": (1, None),
    "argsort": (1, -1),
    "topk": (2, -1),
    "sort": (1, -1),
    "max": (1, ""),
    "min": (1, ""),
}
_PAIRS = frozenset(("topk", "sort", "max", "min"))  # the indices are the second result
_NAMES = """
    view reshape flatten squeeze unsqueeze permute transpose t contiguous clone detach expand narrow select __getitem__
    long
"""
_MOVING = frozenset(_NAMES.split())  # every number of the result is one of the argument
_FUNCTIONS = {getattr(torch, name): name for name in (*_CHOOSING, *_MOVING) if hasattr(torch, name)}


def index_bound(node: fx.Node) -> int | None:
    """An exclusive upper bound of the numbers in this int64 tensor, which are not negative; None if unknown."""
    while _is_as_made(node):
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return None
        name = _name(node)
        if name in _MOVING:
            node = source
        elif name in _CHOOSING and name not in _PAIRS:
            return _size(node, source, name)
        elif node.target is operator.getitem and node.args[1] == 1:
            return _bound_of_pair(source)
        else:
            return None
    return None


def _bound_of_pair(node: fx.Node) -> int | None:
    name, looked_through = _name(node), node.args[0] if node.args else None
    if name not in _PAIRS or not isinstance(looked_through, fx.Node) or "out" in node.kwargs:
        return None
    return _size(node, looked_through, name) if isinstance(node.meta["example_value"], tuple) else None


def _is_as_made(node: fx.Node) -> bool:
    """Whether the node is an int64 tensor that nothing was written to since the graph made it."""
    fake = node.meta.get("example_value")
    return isinstance(fake, FakeTensor) and fake.dtype is torch.int64 and fake.fake_storage.version == 0


def _name(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return _FUNCTIONS.get(node.target, "") if node.op == "call_function" else ""


def _size(node: fx.Node, looked_through: fx.Node, name: str) -> int | None:
    """The size of the dimension that `name` searched."""
    position, dim = _CHOOSING[name]
    if len(node.args) > position:
        dim = node.args[position]
    dim = node.kwargs.get("dim", node.kwargs.get("axis", dim))
    fake = looked_through.meta.get("example_value")
    if not isinstance(fake, FakeTensor):
        return None
    size = fake.numel() if dim is None else fake.shape[dim] if type(dim) is int and fake.dim() else None
    return size if type(size) is int else None
