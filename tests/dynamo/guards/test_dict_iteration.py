"""Iterating over dicts whose entries are looked up, or changed, meanwhile."""

from __future__ import annotations

import pytest
import torch

import stator


class Layers(torch.nn.ModuleDict):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name, layer in self.items():
            x = layer(x) + self[name].bias.sum()
        return x


def test_entries_may_be_looked_up_while_iterating() -> None:
    model, x = Layers({f"layer{i}": torch.nn.Linear(3, 3) for i in range(3)}), torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(stator.compile(model, fullgraph=True)(x), model(x))


@pytest.mark.parametrize("view", [dict.items, dict.keys, iter], ids=["items", "keys", "iter"])
def test_a_change_of_size_while_iterating_is_an_error(view) -> None:
    def function(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
        for _ in view(table):
            table["new"] = 1
            x = x + 1
        return x

    with pytest.raises(RuntimeError, match="dictionary changed size during iteration"):
        stator.compile(function, backend="eager")(torch.ones(2), {"a": 1, "b": 2})
