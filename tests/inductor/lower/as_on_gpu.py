"""Lowers what a test compiles as if its tensors were on a GPU. The reference evaluator runs the lowered graphs on the
CPU, in memory that is NaN where nothing was stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.inductor.lowered_evaluator import flat, run
from torch import fx, nn

from stator import pipeline
from stator.inductor.buffers import Lowered
from stator.inductor.lower import lower, verify_lowered
from stator.inductor.passes import run_passes, with_expressions
from stator.prims.record import TensorMeta

GPU = torch.device("cuda", 0)


@dataclasses.dataclass
class Compiled:
    """Lowered graphs, in order, with positions of outputs whose layout is free."""

    graphs: list[tuple[Lowered, set[int]]]


def lower_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Graphs that are compiled from now on."""
    torch.manual_seed(0)
    found = Compiled([])

    def compile_graph(gm: fx.GraphModule, inputs: Sequence[torch.Tensor], **_: Any) -> Callable[..., Any]:
        graph, sizes = with_expressions(gm)
        lowered = _lowered_on_gpu(run_passes(graph, False), sizes)
        verify_lowered(lowered)
        found.graphs.append((lowered, set(graph.meta.get("free_layouts", ()))))
        return lambda *values: _evaluated(lowered, values)

    monkeypatch.setattr(pipeline, "compile_graph", compile_graph)
    return found


def _lowered_on_gpu(gm: fx.GraphModule, sizes: Any) -> Lowered:
    """Lower the graph with all tensors on a GPU."""
    kept = {node: node.meta["val"] for node in gm.graph.nodes if "val" in node.meta}
    for node, value in kept.items():
        node.meta["val"] = _moved(value)
    try:
        return lower(gm, False, sizes)
    finally:
        for node, value in kept.items():
            node.meta["val"] = value


def _moved(value: Any) -> Any:
    if isinstance(value, TensorMeta):
        return dataclasses.replace(value, device=GPU)
    return type(value)(map(_moved, value)) if type(value) in (tuple, list) else value


def _evaluated(lowered: Lowered, values: Sequence[Any]) -> list[Any]:
    if len(values) == 1 and isinstance(values[0], list):  # inputs that the callee may free
        values = list(values[0])
    return [_copied(x) if isinstance(x, torch.Tensor) else x for x in run(lowered, values)]


def _copied(x: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, with NaN between its elements."""
    copy = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    if x.dtype.is_floating_point:
        flat(copy).fill_(float("nan"))
    return copy.copy_(x)


def outcome(call: Callable[..., Any], model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Results, then gradients if the model is in training."""
    x = x.clone().requires_grad_(model.training)
    with torch.set_grad_enabled(model.training):
        results = call(x)
    results = list(results) if isinstance(results, tuple) else [results]
    if not model.training:
        return results
    torch.manual_seed(1)
    model.zero_grad()
    sum((result.double() * torch.randn(result.shape)).sum() for result in results).backward()
    return [one.detach() for one in [*results, x.grad, *(p.grad for p in model.parameters())] if one is not None]


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / (other.double().norm() + 1e-6))
