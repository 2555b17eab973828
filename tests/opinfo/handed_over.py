"""One operator's call as a graph of torch calls that is handed to a backend, with something before it to compile."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stator import pipeline
from stator.base import counters
from stator.base.config import Options
from stator.base.errors import StatorError

BACKENDS: dict[str, Callable[..., Any]] = {
    "aot_eager": pipeline.aot_eager_backend,
    "inductor": pipeline.inductor_backend,
}
EXACT = partial(pipeline.inductor_backend, options=Options(exact_rounding=True, exact_random=True))


def graph_of(case: Any) -> fx.GraphModule:
    """Takes the tensors of a case (a `compiled.Case` or a `gradients.GradientCase`), returns a tuple of one: what the
    call gives. Before it stands work that a backend compiles, whatever becomes of the call."""
    graph = fx.Graph()
    flat, spec = case.flat
    given = [graph.placeholder(f"given_{at}") for at in range(len(case.tensors))]
    remaining = iter(zip(given, case.tensors, strict=True))
    copies = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
    leaves = [_doubled_half(graph, *leaf) if isinstance(leaf, tuple) else leaf for leaf in copies]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    options = {key: kwargs.pop(key) for key in list(kwargs) if is_dataclass(kwargs[key])}
    graph.output((graph.call_function(_function(case.op, options), tuple(args), kwargs),))
    return fx.GraphModule(torch.nn.Module(), graph)


def _function(op: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """What an entry of the database calls, with options bound: a lambda of torch's own modules, or an object of a
    dataclass, has no name in the Python of a graph."""
    function = getattr(op, "op", op)
    if getattr(function, "__name__", "") != "<lambda>" and not options:
        return function

    def named(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, **options)

    return named


def _doubled_half(graph: fx.Graph, node: fx.Node, tensor: torch.Tensor) -> fx.Node:
    """The same values, exactly, and the same layout; computed where the tensor is differentiated."""
    if not tensor.requires_grad:
        return node
    half = graph.call_function(operator.mul, (node, 0.5))
    return graph.call_function(operator.add, (half, half))


def run(case: Any, backend: str | Callable[..., Any], given: Sequence[torch.Tensor]) -> Any:
    """What the call returns, through the backend. A graph that the backend refuses runs as it is, and is counted."""
    compile_graph = BACKENDS[backend] if isinstance(backend, str) else backend
    graph = graph_of(case)
    try:
        return compile_graph(graph, list(given))(*given)[0]
    except StatorError:
        counters.count("refused_graphs")
        return graph(*given)[0]
