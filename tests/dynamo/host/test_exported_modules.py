"""Modules of torch.export check their inputs in a function that changes options of torch.compile: captured whole."""

from __future__ import annotations

import pytest
import torch
from tests.differential import FUSED, assert_same
from torch import nn

import stator


def exported() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    return torch.export.export(model, (torch.randn(2, 8),)).module()


def test_is_one_graph() -> None:
    model, x = exported(), torch.randn(2, 8)
    with torch.no_grad():
        assert_same(stator.compile(model, fullgraph=True)(x), model(x), FUSED)


@pytest.mark.graphs_may_fail_alone
def test_inputs_of_other_sizes_are_refused() -> None:
    model = exported()
    compiled = stator.compile(model)
    with torch.no_grad():
        compiled(torch.randn(2, 8))
        for call in (model, compiled):
            with pytest.raises(AssertionError, match="Guard failed"):
                call(torch.randn(3, 8))
