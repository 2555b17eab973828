"""Walks the edges of autograd nodes and collects which marked places each node reaches, as bits of a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

Edge = tuple[Any, int]  # a node, and the index of its input
NOTHING: tuple[int, bool] = (0, True)


def reachable_places(
    starts: Iterable[Any],
    ends: Callable[[Any], int] = lambda node: 0,
    passes: Callable[[Edge], tuple[int, bool]] = lambda edge: NOTHING,
) -> dict[Any, int]:
    """For each visited node the places behind it, as bits. Every node comes after the nodes behind it.

    ends: the place of a node without edges. passes: the places of an edge, and whether what lies behind it counts too.
    """
    masks: dict[Any, int] = {}
    todo = list(starts)
    while todo:
        node = todo[-1]
        if node in masks:
            todo.pop()
            continue
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        passed = [(edge[0], *passes(edge)) for edge in edges]
        waiting = [to for to, _, goes_on in passed if goes_on and to not in masks]
        if waiting:
            todo += waiting
            continue
        mask = 0 if edges else ends(node)
        for to, found, goes_on in passed:
            mask |= found | masks[to] if goes_on else found
        masks[node] = mask
        todo.pop()
    return masks


def leaf_places(primals: Mapping[int, torch.Tensor], others: int) -> Callable[[Any], int]:
    """The place of a leaf, for `reachable_places`.

    primals: by place. others: the one place of all other leaves, which the program itself made.
    """
    bits = {id(primal): 1 << at for at, primal in primals.items()}

    def place(node: Any) -> int:
        leaf = getattr(node, "variable", None)
        return 0 if leaf is None else bits.get(id(leaf), 1 << others)

    return place
