"""Subgraphs (branches, loop bodies): a call of the function that each subgraph was compiled to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.graph.subgraphs.subgraph_ops import SubgraphKey, run, run_random
from stator.inductor.lower.builder import LoweringBuilder
from stator.inductor.lower.fallback import library_results
from stator.inductor.lower.registry import lowers


@lowers(run, run_random)
def _run(builder: LoweringBuilder, tensors: Sequence[Any], part: SubgraphKey, sizes: Sequence[Any]) -> Any:
    """Subgraphs are traced and compiled for tensors with exactly eager's strides."""
    nodes: Any = builder.node.args[0]
    given = [builder.argument(value, node.meta["val"].stride) for value, node in zip(tensors, nodes, strict=True)]
    return library_results(builder, part.part, [given, list(sizes)], {}, builder.meta)
