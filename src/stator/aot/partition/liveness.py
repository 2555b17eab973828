"""In which order a backward computes its nodes, and how much memory a step then holds: estimates, on the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import accumulate

from torch import fx
from torch._ops import OpOverload

from stator.graph.ir.memory import memory_root
from stator.graph.ir.schema import op_info

from .costs import bytes_of, is_library_call
from .forward_backward_sets import ForwardBackwardSets


def demand_order(sides: ForwardBackwardSets, given: Collection[fx.Node]) -> list[fx.Node]:
    """The nodes that the gradients need beyond `given`, each forward node just before its first use."""
    order: dict[fx.Node, None] = {}
    for root in (*sides.backward, *sides.gradients):
        stack = [root]
        while stack:
            node = stack[-1]
            if node in order or node in given:
                stack.pop()
                continue
            missing = [used for used in node.all_input_nodes if used not in order and used not in given]
            if missing:
                stack.extend(reversed(missing))
                continue
            order[node] = None
            stack.pop()
    return list(order)


def estimate_peak(
    sides: ForwardBackwardSets, saved: Iterable[fx.Node], held: Callable[[fx.Node], int], compiled: bool = True
) -> int:
    """The most bytes that the backward holds at one time, kept values included.

    held: the bytes that keeping a value adds to what is alive anyway. A value read once, by an operator that can be
    fused with its own, takes no memory. compiled: neither does a value whose readers run before the next library call;
    sums and the like reuse the memory of a dying operand; and a gradient larger than the values that it alone still
    needs is computed once there is room. Otherwise every value gets memory of its own at once, as in eager.
    """
    kept = set(saved)
    order = demand_order(sides, {*kept, *sides.tangents})
    readers: dict[fx.Node, list[int]] = {}
    for position, node in enumerate(order):
        if memory_root(node) is node:
            for used in node.all_input_nodes:
                readers.setdefault(memory_root(used), []).append(position)
    dying: dict[int, list[fx.Node]] = {}
    for node, positions in readers.items():
        dying.setdefault(positions[-1], []).append(node)
    returned = {memory_root(gradient) for gradient in sides.gradients}
    runs_alone = [is_library_call(node) and not (compiled and _adds_rows(node)) for node in order]
    calls = [*accumulate(runs_alone, initial=0)]  # library calls before each position
    sizes = {node: held(node) for node in kept}
    alive = most = sum(sizes.values())
    later = 0  # bytes of delayed gradients, less the bytes that the delay keeps alive
    for position, node in enumerate(order):
        gone = [name for name in dying.get(position, ()) if name not in returned and name in sizes]
        if node.op == "call_function" and memory_root(node) is node:
            uses = readers.get(node, [])
            alone = runs_alone[position]
            apart = not compiled or (bool(uses) and calls[uses[-1]] > calls[position])
            stored = alone or (len(uses) > 1 and apart) or any(map(runs_alone.__getitem__, uses))
            if stored or node in returned:
                sizes[node] = bytes_of(node)
                place = next((n for n in gone if sizes[n] == sizes[node]), None) if compiled and not alone else None
                if place is None:
                    alive += sizes[node]
                else:
                    gone.remove(place)
                    del sizes[place]
                if compiled and alone and node in returned and not uses:
                    later += max(0, sizes[node] - sum(map(sizes.__getitem__, gone)))
                most = max(most, alive - later)
        alive -= sum(sizes.pop(name) for name in gone)
    return max(most, alive)


_ROWS = frozenset(("index_put", "_unsafe_index_put", "index_add", "scatter", "scatter_add"))


def _adds_rows(node: fx.Node) -> bool:
    """Whether the node changes a few places of its first operand, which a kernel does in place."""
    return isinstance(node.target, OpOverload) and op_info(node.target).name in _ROWS
