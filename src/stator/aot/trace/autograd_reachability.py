"""What nodes of autograd lead to, along their edges: places, as bits of a number.

Which places are of interest is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

Edge = tuple[Any, int]  # a node, and which of its inputs
NOTHING: tuple[int, bool] = (0, True)


def reached(
    starts: Iterable[Any],
    ends: Callable[[Any], int] = lambda node: 0,
    passes: Callable[[Edge], tuple[int, bool]] = lambda edge: NOTHING,
) -> dict[Any, int]:
    """For each node that is come to the places behind it; each node after those behind it.

    ends: the places that a node is which leads on to nothing. passes: the places that an edge comes to, and whether
    what is behind it counts as well.
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
    """The place of a leaf, for `reached`. primals: by place. others: the place of all leaves that are none of these:
    those that the program itself has made."""
    bits = {id(primal): 1 << at for at, primal in primals.items()}

    def place(node: Any) -> int:
        leaf = getattr(node, "variable", None)
        return 0 if leaf is None else bits.get(id(leaf), 1 << others)

    return place
