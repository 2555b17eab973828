"""Max pooling whose places only its own backward reads keeps them in a byte each: `stator::max_pool_places`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from stator.prims.layout import channels_last_strides, same_strides
from stator.prims.operators.pooling_places import (
    has_places,
    max_pool_places,
    max_pool_places_backward,
    windows_around,
)

aten = torch.ops.aten


def narrow_pooling_places(gm: fx.GraphModule) -> fx.GraphModule:
    """Replace the operators of such poolings, in place, where loops compute both directions well; returns `gm`. Every
    node needs meta["val"]."""
    found = [
        node
        for node in gm.graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default)
        if _narrow(node)
    ]
    if found:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return gm


def _narrow(node: fx.Node) -> bool:
    results: dict[Any, list[fx.Node]] = {0: [], 1: []}
    for user in node.users:
        results[user.args[1]].append(user)
    readers = [reader for indices in results[1] for reader in indices.users]
    meta = node.args[0].meta["val"]  # type: ignore[union-attr]
    given = _geometry(node.args[1:])
    if not readers or given is None or not has_places(*given[:4]):
        return False
    kernel, stride, _, dilation, _ = given
    if not _has_loops(meta, windows_around(kernel, stride, dilation)):
        return False
    for reader in readers:
        at_last = reader.target is aten.max_pool2d_with_indices_backward.default and reader.args[7] in results[1]
        if not at_last or reader.args[1] is not node.args[0] or _geometry(reader.args[2:7]) != given:
            return False
    for one in (node, *results[1]):
        values = one.meta["val"]
        narrow = replace(values[1] if one is node else values, dtype=torch.int8)
        one.meta["val"] = (values[0], narrow) if one is node else narrow
    node.target, node.args = max_pool_places, (node.args[0], *given)
    for reader in readers:
        reader.target, reader.args = max_pool_places_backward, (*reader.args[:2], *given, reader.args[7])
    return True


def _has_loops(meta: Any, windows: Sequence[int]) -> bool:
    """True where loops are quicker than ATen's backward: not along rows on a CPU, if windows overlap."""
    if not meta.dtype.is_floating_point:
        return False
    shape = tuple(meta.shape)
    channels_last = len(shape) == 4 and same_strides(shape, channels_last_strides(shape), meta.stride)
    return meta.device.type != "cpu" or channels_last or math.prod(windows) == 1


def _geometry(args: Sequence[Any]) -> tuple[Any, ...] | None:
    """Kernel, stride, padding and dilation of rows and columns, and whether the last window may be cut off; None if a
    number is unknown."""
    defaults: list[Any] = [(), (0,), (1,), False]
    kernel, stride, padding, dilation, ceil_mode = [*args, *defaults[len(args) - 1 :]]
    pairs = [_pair(one) for one in (kernel, stride or kernel, padding, dilation)]
    if not all(type(number) is int for pair in pairs for number in pair):
        return None
    return (*pairs, bool(ceil_mode))


def _pair(value: Any) -> list[Any]:
    numbers = list(value) if isinstance(value, (tuple, list)) else [value]
    return numbers * 2 if len(numbers) == 1 else numbers
