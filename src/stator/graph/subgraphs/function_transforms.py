"""Function transforms inside graphs: the callable of a node that applies torch.func.grad, vmap and the like to a
function captured as a graph. It runs on real tensors and, while tracing, on fake ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .custom_autograd import run_subgraph


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stands in a tree for the tensor with this index."""

    index: int


# apply(inner, args, kwargs, extra) -> result: calls a transform of `inner` on trees of tensors
Apply = Callable[..., Any]


class FunctionTransform:
    """A transform of a captured function.

    graph: the function. Its placeholders are the tensors at `reads`: indices into the tensor arguments followed by the
        free tensors.
    arguments: the tree (args, kwargs, extra) with `Leaf`s for tensors; the function itself takes args and kwargs only.
    results: the function's result, with `Leaf`s for the outputs of the graph.
    """

    uses_autograd = True

    def __init__(self, graph: fx.GraphModule, reads: Sequence[int], arguments: Any, results: Any, apply: Apply) -> None:
        self.graph = graph
        self.reads = tuple(reads)
        self.arguments = arguments
        self.results = results
        self.apply = apply
        leaves = pytree.tree_leaves(arguments)
        self.argument_count = sum(isinstance(leaf, Leaf) for leaf in leaves)
        inner = pytree.tree_leaves(arguments[:2])
        self._given = [position for position, leaf in enumerate(inner) if isinstance(leaf, Leaf)]
        self.structure: Any = None  # structure of the last call's result, with `Leaf`s for tensors

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return all tensors of the transform's result, flattened."""
        given, free = tensors[: self.argument_count], tensors[self.argument_count :]

        def inner(*args: Any, **kwargs: Any) -> Any:
            leaves = pytree.tree_leaves((args, kwargs))
            places = [*[leaves[position] for position in self._given]]
            values = [*places, *[None] * (self.argument_count - len(places)), *free]
            made = run_subgraph(self.graph, [values[index] for index in self.reads])
            return fill_leaves(self.results, made)

        args, kwargs, extra = fill_leaves(self.arguments, given)
        leaves, spec = pytree.tree_flatten(self.apply(inner, args, kwargs, extra))
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        count = iter(range(len(found)))
        marked = [Leaf(next(count)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.structure = pytree.tree_unflatten(marked, spec)
        return tuple(found)

    def graphs(self) -> dict[str, fx.GraphModule]:
        """Return the graph by role, for printing."""
        return {"function": self.graph}


def fill_leaves(tree: Any, tensors: Sequence[Any]) -> Any:
    """Replace the `Leaf`s of a tree by tensors."""
    return pytree.tree_map_only(Leaf, lambda leaf: tensors[leaf.index], tree)
