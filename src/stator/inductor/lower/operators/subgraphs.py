"""Graphs that run inside of a graph (branches, loops): one call of what they were compiled to, by whoever compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.graph.subgraphs.subgraph_ops import PartKey, run, run_random
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.registry import lowers


@lowers(run, run_random)
def _run(builder: LoweringBuilder, tensors: Sequence[Any], part: PartKey) -> Any:
    """Its graphs were traced, and are compiled, for tensors with exactly the strides that eager gives them."""
    nodes: Any = builder.node.args[0]
    given = [builder.argument(value, node.meta["val"].stride) for value, node in zip(tensors, nodes, strict=True)]
    return library_results(builder, part.part, [given], {}, builder.meta)
