"""Moves CPU tensors to the device of the operators that compute with them: a kernel reads memory of one device."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx
from torch._ops import OpOverload

from stator.prims.layout import preserved_strides
from stator.prims.record import TensorMeta

aten = torch.ops.aten

# Operators that read memory of one device and write memory of another
_TRANSFERS = frozenset((aten._to_copy.default, aten.copy.default))


def move_to_device(gm: fx.GraphModule) -> fx.GraphModule:
    """Copy CPU tensors that operators of another device take: numbers in tensors without dimensions, and indices.
    Each is copied once."""
    copies: dict[tuple[fx.Node, torch.device], fx.Node] = {}

    for node in list(gm.graph.nodes):
        device = _device(node)
        if device is None or device.type == "cpu" or not _computes(node):
            continue

        def moved(used: fx.Node, node: fx.Node = node, device: torch.device = device) -> fx.Node:
            meta = used.meta.get("val")
            if not isinstance(meta, TensorMeta) or meta.device.type != "cpu":
                return used
            if (used, device) not in copies:
                with gm.graph.inserting_before(node):
                    made = gm.graph.call_function(aten._to_copy.default, (used,), {"device": device})
                made.meta.update({name: value for name, value in used.meta.items() if name in ("place", "checkpoint")})
                strides = preserved_strides(meta.shape, meta.stride)
                made.meta["val"] = replace(meta, stride=strides, device=device, offset=0, view_of=None)
                copies[used, device] = made
            return copies[used, device]

        node.args = fx.map_arg(node.args, moved)
        node.kwargs = fx.map_arg(node.kwargs, moved)
    return gm


def _computes(node: fx.Node) -> bool:
    """True for an ATen operator that reads memory of one device. Other operators say themselves what they take."""
    return isinstance(node.target, OpOverload) and node.target.namespace == "aten" and node.target not in _TRANSFERS


def _device(node: fx.Node) -> torch.device | None:
    """The device of a node's (first) result."""
    meta = node.meta.get("val")
    if isinstance(meta, tuple | list):
        meta = next((one for one in meta if isinstance(one, TensorMeta)), None)
    return meta.device if isinstance(meta, TensorMeta) else None
