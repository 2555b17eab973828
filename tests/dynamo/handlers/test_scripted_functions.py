"""Functions that TorchScript has compiled are followed as the Python code that they were made from."""

from __future__ import annotations

import warnings

import torch

import stator
from stator.base import counters

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, in new versions of torch

    @torch.jit.script
    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        if n > 2:
            x = x + 1
        return x * n


def program(x: torch.Tensor, n: int) -> torch.Tensor:
    return scaled(x, n).sin() + scaled(x, n=1)


def test_one_graph_with_the_results_of_the_script() -> None:
    compiled = stator.compile(program, backend="eager")
    x = torch.randn(3)
    for n in (1, 5):
        counters.clear()
        assert torch.equal(compiled(x, n), program(x, n))
        assert counters.counts["graphs"] == 1 and not counters.counts["graph_breaks"]
