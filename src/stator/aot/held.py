"""What a call holds for its backward, saved values and inputs, and whether they still are what they were then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .independent import Kept

ANY = -1  # a version that nobody asks for


def saved_values(step_node: Any, wanted: int) -> list[Any]:
    """What the forward saved, as far as the values that are wanted need it; RuntimeError when it was freed."""
    step: Any = step_node.step
    _check_places(step_node)
    kept: Kept | None = getattr(step_node, "kept", None)
    known = kept.saved(wanted, len(step.names)) if kept is not None else None
    if known is None and not step.parts.saved:
        freed = getattr(step_node, "freed", 0)
        known = None if freed and step.reads.meets(freed, wanted) else []
    return list(step_node.saved_tensors) if known is None else known


def _check_places(step_node: Any) -> None:
    """Raise RuntimeError when the memory of a saved input was replaced, which autograd does not notice.

    Eager then finds the new contents where an operator saved the very tensor, and the old ones where it saved a view or
    something computed from it: not a thing that a backward which computes other values again could imitate.
    """
    for index, place in zip(step_node.step.saved_inputs, step_node.places, strict=True):
        entry = step_node.primals[index] if step_node.primals else None
        if entry is not None and entry[0].data_ptr() != place:
            raise RuntimeError(
                f"stator: the data of a tensor of shape {list(entry[0].shape)} was replaced (`.data = ...`) between "
                "the forward of a compiled graph and its backward, which needs what it was; replace it before or "
                "after both, or run this part eagerly (stator.disable)"
            )


def unchanged_inputs(primals: Sequence[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
    """The primals as the forward saw them. Raises RuntimeError when they are not what they were."""
    found = []
    for entry in primals:
        primal, version = entry
        if version == ANY:
            found.append(primal.detach())
            continue
        if primal._version != version:
            raise RuntimeError(
                "one of the inputs of a compiled graph was modified in place before its backward was differentiated: "
                f"it is at version {primal._version}, expected version {version}"
            )
        found.append(primal)
    return found
