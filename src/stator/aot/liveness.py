"""In which order a backward computes what it needs, and how much memory a step holds then. Estimates, on the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from torch import fx

from stator.graph.memory import memory_root

from .costs import bytes_of, is_library_call
from .sides import Sides


def demand_order(sides: Sides, given: Collection[fx.Node]) -> list[fx.Node]:
    """What the gradients need and is not given, each forward value just before its first use."""
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


def estimate_peak(sides: Sides, saved: Iterable[fx.Node], held: Callable[[fx.Node], int]) -> int:
    """The most bytes that the backward holds at one time, kept values included.

    held: what keeping a value adds to what is alive anyway. Values that are only read once, by an operator that can be
    fused with theirs, are taken to need no memory.
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
    sizes = {node: held(node) for node in kept}
    alive = most = sum(sizes.values())
    for position, node in enumerate(order):
        if node.op == "call_function" and memory_root(node) is node:
            uses = readers.get(node, [])
            stored = node in returned or len(uses) > 1 or is_library_call(node)
            if stored or any(is_library_call(order[reader]) for reader in uses):
                sizes[node] = bytes_of(node)
                alive += sizes[node]
                most = max(most, alive)
        for gone in dying.get(position, ()):
            if gone not in returned:
                alive -= sizes.pop(gone, 0)
    return most
