"""Joint graphs written by hand: small graphs of ATen operators whose metas come from torch's meta device."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from stator.aot.partition.partition import Partition, SavedInput
from stator.graph.verifier import verify
from stator.prims.record import TensorMeta

aten = torch.ops.aten


@dataclass
class HandMade:
    """The attributes of a joint graph that `partition` reads."""

    graph: fx.GraphModule
    primal_count: int
    value_count: int
    traced: Any
    unknown: tuple[Any, ...] = ()


@dataclass
class Writer:
    """Add primals, then tangents, then operators; nodes made after `backward` was set are marked."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    stand_ins: dict[fx.Node, Any] = field(default_factory=dict)
    primal_count: int = 0
    backward: bool = False
    checkpoint: int | None = None

    def primal(self, *shape: int, dtype: torch.dtype = torch.float32) -> fx.Node:
        self.primal_count += 1
        return self._placeholder(f"primal_{self.primal_count}", shape, dtype)

    def tangent(self, *shape: int) -> fx.Node:
        return self._placeholder("tangent", shape, torch.float32)

    def _placeholder(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Node:
        node = self.graph.placeholder(name)
        return self._finish(node, torch.empty(shape, dtype=dtype, device="meta"))

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Record an operator; its result is computed on the meta device. Operators with several results: see `part`."""
        node = self.graph.call_function(target, args, kwargs)
        given = fx.map_arg((args, kwargs), self.stand_ins.__getitem__)
        return self._finish(node, target(*given[0], **given[1]))

    def part(self, node: fx.Node, index: int) -> fx.Node:
        return self._finish(self.graph.call_function(operator.getitem, (node, index)), self.stand_ins[node][index])

    def _finish(self, node: fx.Node, result: Any) -> fx.Node:
        self.stand_ins[node] = result
        node.meta["val"] = tuple(map(_meta_of, result)) if isinstance(result, (tuple, list)) else _meta_of(result)
        if self.backward:
            node.meta["backward"] = True
        if self.checkpoint is not None:
            node.meta["checkpoint"] = self.checkpoint
        return node

    def joint(
        self, values: Sequence[fx.Node], gradients: Sequence[fx.Node], mutated: Sequence[tuple[int, int]] = ()
    ) -> HandMade:
        self.graph.output((*values, *gradients))
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        return HandMade(module, self.primal_count, len(values), SimpleNamespace(mutated=list(mutated)))


def _meta_of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    view_of = 0 if value._is_view() else None
    return TensorMeta(
        tuple(value.shape), value.stride(), value.dtype, torch.device("cpu"), value.storage_offset(), view_of
    )


def assert_halves_compute(joint: HandMade, halves: Partition, seed: int = 1) -> tuple[list[torch.Tensor], Any]:
    """Both halves are valid graphs, and together give the joint graph's results, bit by bit.

    Returns the inputs of the forward and its outputs.
    """
    verify(halves.forward)
    verify(halves.backward)
    torch.manual_seed(0)
    placeholders = [node.meta["val"] for node in joint.graph.graph.nodes if node.op == "placeholder"]
    given = [torch.empty_strided(m.shape, m.stride, dtype=m.dtype).normal_() for m in placeholders]
    primals, tangents = given[: joint.primal_count], given[joint.primal_count :]
    torch.manual_seed(seed)
    expected = joint.graph(*primals, *tangents)
    torch.manual_seed(seed)
    outputs = halves.forward(*primals)
    saved = [primals[s.index] if isinstance(s, SavedInput) else outputs[s.position] for s in halves.saved]
    gradients = halves.backward(*saved, *tangents)
    for actual, wanted in zip((*outputs[: joint.value_count], *gradients), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0, check_stride=True)
    return primals, outputs
