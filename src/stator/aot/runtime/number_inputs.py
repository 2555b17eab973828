"""Turns Python numbers that change between calls into zero-dim CPU tensors, so that graphs take only tensors.

The number keeps its meaning to operators: it promotes no type. See `stator.graph.fake.number_stand_ins`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from stator.graph.fake.number_stand_ins import number_from_tensor
from stator.graph.ir.aten_graph import PlainGraphModule

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Known:
    """The number that capture had, for the trace of a graph. Python code of the graph, which runs on tensors, has None
    instead: the number's text has symbols."""

    def __init__(self, number: Any) -> None:
        self.number = number

    def __repr__(self) -> str:
        return "None"


def _read(tensor: torch.Tensor, known: Any) -> Any:
    return number_from_tensor(tensor, None if known is None else known.number)


def carry_numbers(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[fx.GraphModule, Sequence[Any], Wrap]:
    """Replace the number inputs of a graph with tensors: a graph, its inputs, and the wrap that gives its compiled
    callable the arguments of `gm`. The numbers are the placeholders with
    `meta["number"]`: the node that capture had for it, or True. Other Python inputs stay as they are."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    positions = [at for at, node in enumerate(placeholders) if node.meta.get("number")]
    if not positions:
        return gm, example_inputs, lambda compiled: compiled

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: inner(*_carried(args, positions))

    return _reading_tensors(gm, positions), _carried(example_inputs, positions), wrap


def _carried(args: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    carried = list(args)
    for at in positions:
        number = carried[at]
        dtype = torch.int64 if type(number) is int else torch.float64
        carried[at] = torch.scalar_tensor(number, dtype=dtype, device="cpu")  # in half the time of torch.tensor
    return carried


def _reading_tensors(gm: fx.GraphModule, positions: Sequence[int]) -> fx.GraphModule:
    """A copy of the graph that takes tensors at these positions and reads numbers from them."""
    graph = fx.Graph()
    result = graph.graph_copy(gm.graph, {})
    graph.output(result)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for at in positions:
        placeholder = placeholders[at]
        users = list(placeholder.users)
        with graph.inserting_after(placeholders[-1]):
            known: Any = _Known(placeholder.meta["number"])
            number = graph.call_function(_read, (placeholder, known))
        for user in users:
            user.replace_input_with(placeholder, number)
    made = PlainGraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made
