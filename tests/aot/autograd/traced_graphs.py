"""The forward and backward graphs of a compiled program, which run operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import stator
from stator.aot import compile_training


def graphs_of(program: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    """The compiled program, and the list of its graphs."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        return compile_training(graph, inputs, lambda gm, given: graphs.append(gm) or gm, keep=lambda target: True)

    return stator.compile(program, backend=backend, fullgraph=True), graphs


def count(graph: Any, target: Any) -> int:
    return sum(node.target is target for node in graph.graph.nodes)
