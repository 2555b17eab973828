"""Graphs that run inside of a graph (branches, loops): one call of what they were compiled to, by whoever compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.graph.parts import PartKey, run, run_random

from .builder import Builder
from .fallback import library_results
from .registry import lowers


@lowers(run, run_random)
def _run(builder: Builder, tensors: Sequence[Any], part: PartKey) -> Any:
    """Its graphs were traced, and are compiled, for tensors with exactly the strides that eager gives them."""
    nodes: Any = builder.node.args[0]
    given = [builder.argument(value, node.meta["val"].stride) for value, node in zip(tensors, nodes, strict=True)]
    return library_results(builder, part.part, [given], {}, builder.meta)
