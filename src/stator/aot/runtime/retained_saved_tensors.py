"""Which saved values a compiled backward reads for which outputs and inputs, and those that are kept when it has run.

In eager a backward frees what its own nodes saved; what is reached through none of them can be differentiated
afterwards (`eager_saved_tensors.py` knows). One compiled step has one node for all outputs: what is needed then is kept
beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True, slots=True)
class Reads:
    """operators: of those of a backward graph that read saved values: the tangents that lead there, the primals whose
    gradients it leads to, and the saved values, each as bits."""

    operators: tuple[tuple[int, int, int], ...]

    @staticmethod
    def of(backward: fx.GraphModule, saved_count: int, gradients: Sequence[int | None]) -> Reads:
        """backward: placeholders are `saved_count` saved values, then the tangents. gradients: per primal the position
        of its gradient among the outputs."""
        tangents: dict[fx.Node, int] = {}
        saved: dict[fx.Node, int] = {}
        reading: list[tuple[fx.Node, int]] = []
        placeholders = [node for node in backward.graph.nodes if node.op == "placeholder"]
        for at, node in enumerate(placeholders):
            tangents[node] = 1 << (at - saved_count) if at >= saved_count else 0
            saved[node] = 1 << at if at < saved_count else 0
        for node in backward.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            reached = read = 0
            for argument in node.all_input_nodes:
                reached |= tangents[argument]
                read |= saved[argument]
            tangents[node], saved[node] = reached, 0 if reached else read
            if reached and read:
                reading.append((node, read))
        leads = _gradients_behind(backward, gradients)
        return Reads(tuple([(tangents[node], leads[node], read) for node, read in reading]))

    def needed(self, left: Sequence[int]) -> list[int]:
        """The saved values that are read on the ways that are left: per tangent the primals it still leads to."""
        found = 0
        for tangents, primals, read in self.operators:
            if any(tangents >> at & 1 and primals & one for at, one in enumerate(left)):
                found |= read
        return [at for at in range(found.bit_length()) if found >> at & 1]


def _gradients_behind(backward: fx.GraphModule, gradients: Sequence[int | None]) -> dict[fx.Node, int]:
    """For each node the primals whose gradients it leads to."""
    nodes = list(backward.graph.nodes)
    outputs: Any = nodes[-1].args[0]
    leads: dict[fx.Node, int] = {}
    for primal, position in enumerate(gradients):
        if position is not None and isinstance(outputs[position], fx.Node):
            leads[outputs[position]] = leads.get(outputs[position], 0) | 1 << primal
    for node in reversed(nodes[:-1]):
        found = leads.setdefault(node, 0)
        for argument in node.all_input_nodes:
            leads[argument] = leads.get(argument, 0) | found
    return leads


@dataclass(frozen=True, slots=True)
class Kept:
    """Saved values, by position, with their versions when they were kept."""

    values: dict[int, tuple[torch.Tensor, int]]

    @staticmethod
    def of(positions: Iterable[int], saved: Sequence[Any]) -> Kept:
        """Of nobody's history: no cycle."""
        return Kept({at: (saved[at].detach(), saved[at]._version) for at in positions if saved[at] is not None})

    def saved(self, count: int) -> list[Any]:
        """The saved values by position, as far as kept. Raises RuntimeError when one was written to."""
        found: list[Any] = [None] * count
        for at, (value, version) in self.values.items():
            check_version(value, version)
            found[at] = value
        return found


def check_version(tensor: torch.Tensor, version: int) -> None:
    """Raise autograd's error when a tensor was written to since it had this version."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} "
            "instead."
        )


def freed_twice() -> RuntimeError:
    """Autograd's error."""
    return RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
        "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access "
        "saved tensors after calling backward."
    )
