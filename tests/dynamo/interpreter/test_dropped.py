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


def test_what_a_variable_holds_is_there() -> None:
    def function(x: torch.Tensor, holder: Holder, reference: Any) -> tuple[torch.Tensor, bool]:
        held = holder.held
        holder.held = None
        del holder.table["held"]
        return x + 1, reference() is held

    compiled = stator.compile(function, backend="eager")
    for _ in range(2):
        holder = Holder()
        assert compiled(torch.ones(1), holder, weakref.ref(holder.held))[1] is True
    assert compiled(torch.ones(1), Holder(), weakref.ref(holder))[1] is False  # another object, which is there


def test_what_a_variable_no_longer_holds_may_be_gone() -> None:
    def function(x: torch.Tensor, holder: Holder, reference: Any) -> tuple[torch.Tensor, bool]:
        held = holder.held
        holder.held = None
        del holder.table["held"]
        held = x
        return held + 1, reference() is None

    compiled = stator.compile(function, backend="eager")
    for _ in range(2):
        holder = Holder()
        assert compiled(torch.ones(1), holder, weakref.ref(holder.held))[1] is True


def test_recurrent_layers_behind_a_break_are_one_graph() -> None:
    """torch asks weak references there whether the weights are the same, when variables of the frame have changed."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(4, 4)
            self.recurrent = torch.nn.LSTM(4, 4, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            stator.graph_break()
            x, (state, _) = self.recurrent(x)
            return x + state[-1].unsqueeze(1)

    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(gm)
        return gm.forward

    torch.manual_seed(0)
    model = Model()
    compiled = stator.compile(model, backend=backend)
    for _ in range(2):
        x = torch.randn(2, 3, 4)
        assert torch.equal(compiled(x), model(x))
    assert len(graphs) == 2
