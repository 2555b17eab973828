"""Which outputs of a program can still be differentiated when the graph behind others of them has been freed.

In eager a backward frees what its own nodes saved; an output that is reached through none of them can be differentiated
afterwards. One compiled step has one node for all outputs, so what such outputs need is kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True, slots=True)
class Reads:
    """What the tangents of a backward graph lead to, as bits: of other tangents, and of saved values.

    conflicts: per tangent those it shares an operator with that reads saved values (itself among them). needs: per
    tangent the saved values that its operators read. leads: the tangents that lead anywhere.
    """

    conflicts: tuple[int, ...]
    needs: tuple[int, ...]
    leads: int

    @staticmethod
    def of(backward: fx.GraphModule, saved_count: int) -> Reads:
        """backward: placeholders are `saved_count` saved values, then the tangents."""
        tangents: dict[fx.Node, int] = {}
        saved: dict[fx.Node, int] = {}
        placeholders = [node for node in backward.graph.nodes if node.op == "placeholder"]
        count = len(placeholders) - saved_count
        conflicts, needs, leads = [0] * count, [0] * count, 0
        for at, node in enumerate(placeholders):
            tangents[node] = 1 << (at - saved_count) if at >= saved_count else 0
            saved[node] = 1 << at if at < saved_count else 0
        for node in backward.graph.nodes:
            if node.op == "placeholder":
                continue
            reached = read = 0
            for argument in node.all_input_nodes:
                reached |= tangents[argument]
                read |= saved[argument]
            tangents[node], saved[node] = reached, 0 if reached else read
            if not reached or node.op == "output":
                leads |= reached
                continue
            for at in range(count) if read or _saves_a_factor(node, tangents) else ():
                if reached >> at & 1:
                    conflicts[at] |= reached
                    needs[at] |= read
        return Reads(tuple(conflicts), tuple(needs), leads)

    def meets(self, freed: int, wanted: int) -> bool:
        """Whether something that is wanted is reached through what is gone."""
        return any(wanted >> at & 1 and conflicts & freed for at, conflicts in enumerate(self.conflicts))

    def remaining(self, freed: int) -> tuple[int, list[int]]:
        """The tangents that can still be given when what `freed` lead to is gone, and the saved values to keep."""
        found = kept = 0
        for at, (conflicts, needs) in enumerate(zip(self.conflicts, self.needs, strict=True)):
            if self.leads >> at & 1 and not conflicts & freed:
                found |= 1 << at
                kept |= needs
        return found, [at for at in range(kept.bit_length()) if kept >> at & 1]


_PRODUCTS = (torch.ops.aten.mul.Tensor, torch.ops.aten.mm.default, torch.ops.aten.bmm.default)


def _saves_a_factor(node: fx.Node, tangents: Mapping[fx.Node, int]) -> bool:
    """Whether it belongs to a product with a number or a tensor, which eager saves also where it is made of nothing."""
    return node.target in _PRODUCTS and not all(isinstance(part, fx.Node) and tangents[part] for part in node.args)


@dataclass(frozen=True, slots=True)
class Kept:
    """Saved values for the outputs that can still be differentiated; `freed` are those that were."""

    freed: int
    possible: int
    values: dict[int, tuple[torch.Tensor, int]]  # with their version when they were kept

    @staticmethod
    def of(reads: Reads, freed: int, saved: Sequence[Any]) -> Kept | None:
        possible, needed = reads.remaining(freed)
        if not possible:
            return None
        values = {at: (saved[at].detach(), saved[at]._version) for at in needed}  # of nobody's history: no cycle
        return Kept(freed, possible, values)

    @staticmethod
    def everything(saved: Sequence[Any], positions: int) -> Kept:
        """For all of so many outputs."""
        return Kept(0, (1 << positions) - 1, {at: (one.detach(), one._version) for at, one in enumerate(saved)})

    def saved(self, wanted: int, count: int) -> list[Any] | None:
        """The saved values by position, as far as kept; None if what is wanted was freed. Raises RuntimeError when
        one was written to."""
        if wanted & ~self.possible:
            return None
        found: list[Any] = [None] * count
        for at, (value, version) in self.values.items():
            if value._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{value.type()} {list(value.shape)}] is at version {value._version}; expected version {version} "
                    "instead."
                )
            found[at] = value
        return found
