"""Weak references behind changes: asked in the graph where nothing can have been let go of, else when it runs."""

from __future__ import annotations

import weakref
from typing import Any

import torch

import stator


class Held:
    pass


class Holder:
    def __init__(self) -> None:
        self.held: Any = Held()
        self.count = 0
        self.table = {"held": self.held, "count": 0}


def test_behind_changes_of_numbers_it_is_one_graph() -> None:
    def function(x: torch.Tensor, holder: Holder, reference: Any) -> tuple[torch.Tensor, bool]:
        holder.count += 1
        holder.table["count"] = 2
        return x + 1, reference() is holder.held

    holder = Holder()
    compiled = stator.compile(function, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1), holder, weakref.ref(holder.held))[1] is True


def test_behind_the_loss_of_what_held_the_object() -> None:
    def function(x: torch.Tensor, holder: Holder, reference: Any) -> tuple[torch.Tensor, bool]:
        holder.held = None
        del holder.table["held"]
        return x + 1, reference() is None

    compiled = stator.compile(function, backend="eager")
    warm = Holder()
    compiled(torch.ones(1), warm, weakref.ref(warm.held))  # while it is captured, the capture holds the object
    holder = Holder()
    assert compiled(torch.ones(1), holder, weakref.ref(holder.held))[1] is True
