"""Collectives. They run beside the program until it waits for their results, and read their operands meanwhile."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from stator.inductor.buffers import Extern, View
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.fallback import call_library
from stator.inductor.lower.registry import lowers
from stator.inductor.lower.tensor import Tensor
from stator.prims.record import TensorMeta

_NAMES = """
    all_gather_into_tensor all_gather_into_tensor_coalesced all_reduce all_reduce_coalesced all_to_all_single broadcast
    reduce_scatter_tensor reduce_scatter_tensor_coalesced
"""
_namespace = torch.ops._c10d_functional
# none where torch is built without distributed programs
_COLLECTIVES = [getattr(_namespace, name).default for name in _NAMES.split() if hasattr(_namespace, name)]
_WAIT = _namespace.wait_tensor.default if _COLLECTIVES else None


def _collective(builder: LoweringBuilder, *args: Any, **kwargs: Any) -> Any:
    """A library call. If the graph does not wait for the result, the call is followed by a wait: when the program has
    ended, other programs use the memory of the operands."""
    node = builder.node
    assert node is not None
    result = call_library(builder, node, args, kwargs)
    if _is_waited_for(node):
        return result
    if isinstance(result, Tensor):
        return _waited(builder, result, node.meta["val"])
    return [
        _waited(builder, one, meta) if isinstance(one, Tensor) else one
        for one, meta in zip(result, node.meta["val"], strict=True)
    ]


def _is_waited_for(node: fx.Node) -> bool:
    if isinstance(node.meta["val"], TensorMeta):
        return any(user.target is _WAIT for user in node.users)
    return bool(node.users) and all(user.target is operator.getitem and _is_waited_for(user) for user in node.users)


def _wait(builder: LoweringBuilder, result: Tensor) -> Tensor:
    return _waited(builder, result, builder.meta)


def _waited(builder: LoweringBuilder, result: Tensor, meta: TensorMeta) -> Tensor:
    """Wait for a result. Until then no other step may use the memory of the operands."""
    given = builder.argument(result, meta.stride)
    waited = builder.extern(_WAIT, [given], {}, [meta])[0]
    name = given.base if isinstance(given, View) else given
    calls = [one for one in builder.nodes if isinstance(one, Extern) and name in one.outputs]
    operands = [
        one.base if isinstance(one, View) else one for call in calls for one in tree_leaves((call.args, call.kwargs))
    ]
    wait = builder.nodes[-1]
    assert isinstance(wait, Extern) and waited is not None
    keeps = dict.fromkeys(one for one in operands if isinstance(one, str) and one in builder.buffers)
    builder.nodes[-1] = replace(wait, keeps=tuple(keeps))
    return waited


if _WAIT is not None:
    lowers(*_COLLECTIVES)(_collective)
    lowers(_WAIT)(_wait)
