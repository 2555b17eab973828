"""What a pass leaves of the graphs of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import fx

from stator.inductor import passes

GraphsAfter = Callable[[passes.Pass], list[fx.Graph]]


@pytest.fixture
def graphs_after(monkeypatch: pytest.MonkeyPatch) -> GraphsAfter:
    """A function: the graphs that a pass leaves from then on."""

    def collect(apply: passes.Pass) -> list[fx.Graph]:
        found: list[fx.Graph] = []

        def note(gm: fx.GraphModule) -> fx.GraphModule:
            gm = apply(gm)
            found.append(gm.graph)
            return gm

        monkeypatch.setattr(passes, "PASSES", tuple(note if one is apply else one for one in passes.PASSES))
        return found

    return collect
