"""Which values of the forward to keep for the backward, and which to compute again there.

A minimum cut decides for each value: keep it (cost: memory and traffic), compute it again (cost: arithmetic), or
neither. Costs are in costs.py, cuts in min_cut.py, choices for a memory budget in budget.py.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import fx

from stator.graph.ir.cleanup import is_copy_of_input
from stator.graph.ir.memory import memory_root
from stator.prims.record import TensorMeta

from .costs import TENSOR, bytes_of, computing_cost, is_library_call, library_cost, rounds
from .forward_backward_sets import ForwardBackwardSets, JointGraph, can_be_saved, is_backward, runs_once
from .min_cut import INFINITE, FlowNetwork

# The price of a kept byte beside its traffic: its page is fetched and zeroed anew in every step
HOLDING = 1.0
# The price of a kept byte where kept values make the peak. Computing values again that fuse with their readers is then
# worth it up to where it begins to cost time: steps of residual and window-attention networks measured the same for 1
# to 2.2
HOLDING_AT_PEAK = 2.2
_COMPARISONS = frozenset(getattr(torch.ops.aten, name).Tensor for name in ("eq", "ne", "ge", "gt", "le", "lt"))
# A price at which any arithmetic is cheaper than keeping
DEAREST = float(1 << 30)


@dataclass(frozen=True, slots=True)
class SavedChoice:
    """saved: values to keep, in graph order. saved_bytes: bytes of the values that would be dead otherwise.

    recompute_cost: of the nodes that the backward computes again, in the unit of costs.py.
    """

    saved: tuple[fx.Node, ...]
    saved_bytes: int
    recompute_cost: int


@dataclass(slots=True)
class RecomputeCandidate:
    """One piece of memory, or an operator with several results.

    reads: the values it is computed from. again: cost of computing it in the backward (None: impossible). keep: cost of
    the traffic for keeping it (None: impossible). held: bytes that stay in memory only if it is kept.
    """

    reads: tuple[fx.Node, ...]
    again: int | None
    keep: int | None
    held: int


class RecomputeProblem:
    """Which values may be kept, and which may be computed again. Views belong to the memory that they show."""

    def __init__(self, joint: JointGraph, sides: ForwardBackwardSets, library_again: bool) -> None:
        self.sides = sides
        self.library_again = library_again
        self.roots: dict[fx.Node, fx.Node] = {}
        self.primals = {node: index for index, node in enumerate(sides.primals)}
        self.mutated = {index for index, _ in joint.traced.mutated}
        written = {position for _, position in joint.traced.mutated}
        shown = [(self.root(value), p) for p, value in enumerate(sides.values) if isinstance(value, fx.Node)]
        self.overwritten = {root for root, position in shown if position in written}
        self.shown = {root for root, _ in shown}
        self.readers = self._forward_readers()
        self.wanted = self._wanted()
        self.compared = self._compared()
        self.candidates = self._candidates()

    def root(self, node: fx.Node) -> fx.Node:
        found = self.roots.get(node)
        if found is None:
            found = self.roots[node] = memory_root(node)
        return found

    def _reads(self, node: fx.Node) -> tuple[fx.Node, ...]:
        roots = dict.fromkeys(self.root(used) for used in node.all_input_nodes)
        return tuple(root for root in roots if root.op != "get_attr")

    def _forward_readers(self) -> dict[fx.Node, list[fx.Node]]:
        """Memory of the forward -> nodes of the forward that compute with it, views left out."""
        readers: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
        for node in self.sides.nodes:
            if node in self.sides.forward and node.op == "call_function" and self.root(node) is node:
                for read in self._reads(node):
                    readers[read].append(node)
        return readers

    def _wanted(self) -> dict[fx.Node, bool]:
        """Memory that the backward reads -> whether a library call does, for which it must lie in memory."""
        wanted: dict[fx.Node, bool] = {}
        for used, user in self.sides.crossings():
            root = self.root(used)
            if root.op != "get_attr":
                wanted[root] = wanted.get(root, False) or user is None or is_library_call(user)
        return wanted

    def _compared(self) -> set[fx.Node]:
        """Memory that comparisons of tensors, such as those of the gradients of maxima, are computed from without a
        library call. Sums in another kernel may round otherwise, and no longer equal a maximum that was kept."""
        waiting = [node for node in self.sides.nodes if node.target in _COMPARISONS]
        found: set[fx.Node] = set()
        while waiting:
            for used in waiting.pop().all_input_nodes:
                root = self.root(used)
                meta = root.meta.get("val")
                if root not in found and isinstance(meta, TensorMeta) and meta.dtype.is_floating_point:
                    found.add(root)
                    if not rounds(root) and not is_library_call(root):
                        waiting.append(root)
        return found

    def _candidates(self) -> dict[fx.Node, RecomputeCandidate]:
        """All values that keeping or computing again could concern, starting from the wanted ones."""
        found: dict[fx.Node, RecomputeCandidate] = {}
        waiting = list(self.wanted)
        while waiting:
            node = waiting.pop()
            if node not in found:
                candidate = found[node] = self._candidate(node)
                waiting.extend(candidate.reads)
        return found

    def _candidate(self, node: fx.Node) -> RecomputeCandidate:
        size = bytes_of(node)
        index = self.primals.get(node)
        if index is not None:
            copied = index in self.mutated
            return RecomputeCandidate((), None, TENSOR + (3 * size if copied else size), size if copied else 0)
        again = self._cost_again(node)
        keep: int | None = TENSOR + size * (1 if self._is_stored(node) else 2)
        held = 0 if node in self.shown else size
        if node in self.overwritten:
            keep, held = TENSOR + 3 * size, size
        if not can_be_saved(node) or is_backward(node):
            keep = None  # nodes of eager's backward stay there: other tangents need other parts of them
        region = node.meta.get("checkpoint")
        if region is not None and not _shows_drawn_numbers(node):
            if self._leaves(node, region):
                again = None
            elif again is not None:
                keep = None
        return RecomputeCandidate(self._reads(node) if again is not None else (), again, keep, held)

    def _cost_again(self, node: fx.Node) -> int | None:
        if _shows_drawn_numbers(node):
            return None
        if is_backward(node):
            return 0  # it costs the same on either side
        if is_copy_of_input(node) and node.meta.get("checkpoint") is None:
            return None
        if node in self.compared and rounds(node):
            return None
        cost = computing_cost(node)
        if cost is None and (self.library_again or node.meta.get("checkpoint") is not None):
            cost = library_cost(node)
        if cost is not None and self.wanted.get(node):
            cost += 2 * bytes_of(node)
        return cost

    def _is_stored(self, node: fx.Node) -> bool:
        """Whether the forward stores the value anyway, instead of holding it in registers between fused operators."""
        if node in self.shown or len(self.readers[node]) > 1:
            return True
        producer = (
            node if not node.all_input_nodes or can_be_saved(node.all_input_nodes[0]) else node.all_input_nodes[0]
        )
        return is_library_call(producer) or any(map(is_library_call, self.readers[node]))

    def _leaves(self, node: fx.Node, region: int) -> bool:
        """Whether a value of a checkpoint region is read outside of the region."""
        return node in self.shown or any(user.meta.get("checkpoint") != region for user in self.readers[node])

    # -- solving --------------------------------------------------------------------------------------------------

    def solve(self, holding: float, free: Collection[fx.Node] = ()) -> SavedChoice:
        """The cheapest choice at a price of `holding` per held byte. free: values that are kept at no cost."""
        network = FlowNetwork()
        entries = {node: network.vertex() for node in self.candidates}
        exits = {node: network.vertex() for node in self.candidates}
        for node, candidate in self.candidates.items():
            network.edge(network.SOURCE, entries[node], INFINITE if candidate.again is None else candidate.again)
            cost = INFINITE if candidate.keep is None else candidate.keep + int(holding * candidate.held)
            network.edge(entries[node], exits[node], 0 if node in free else cost)
            for read in candidate.reads:
                network.edge(exits[read], entries[node], INFINITE)
        for node in self.wanted:
            network.edge(exits[node], network.SINK, INFINITE)
        again = network.sink_side()
        return self.settle(node for node in self.candidates if not again[entries[node]] and again[exits[node]])

    def settle(self, kept: Iterable[fx.Node]) -> SavedChoice:
        """Drop unused values from the kept ones, and count bytes and cost."""
        possible, saved, cost = set(kept), set(), 0
        seen: set[fx.Node] = set()
        waiting = list(self.wanted)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in possible:
                saved.add(node)
            else:
                candidate = self.candidates[node]
                cost += candidate.again or 0
                waiting.extend(candidate.reads)
        ordered = tuple(node for node in self.sides.nodes if node in saved)
        return SavedChoice(ordered, sum(self.candidates[node].held for node in saved), cost)

    def held(self, node: fx.Node) -> int:
        """Bytes that are in memory only because the value is kept."""
        return self.candidates[node].held

    def cost_of(self, node: fx.Node, kept: set[fx.Node]) -> int:
        """The cost of computing one kept value again, if all others are kept."""
        cost, waiting, seen = 0, [node], set()
        while waiting:
            at = waiting.pop()
            if at in seen or (at in kept and at is not node):
                continue
            seen.add(at)
            cost += self.candidates[at].again or 0
            waiting.extend(self.candidates[at].reads)
        return cost


def _shows_drawn_numbers(node: fx.Node) -> bool:
    """Whether the value, or the operator whose result it is one of, would be another if it were computed again."""
    producer = node.args[0] if node.target is operator.getitem else node
    return isinstance(producer, fx.Node) and runs_once(producer)
