"""Tangents of other layouts than the compiled backward expects."""

from __future__ import annotations

import pytest
import torch
from tests.differential import ROUNDED, assert_same

import stator
from stator.aot.runtime.backward import CompiledBackward


def test_expanded_tangents_run_the_settled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward of a sum gives an expanded tangent, in each call."""
    runs = []
    run = CompiledBackward._run

    def noted(self: CompiledBackward, arguments: list[torch.Tensor]) -> object:
        runs.append(len(arguments))
        return run(self, arguments)

    monkeypatch.setattr(CompiledBackward, "_run", noted)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * x + 1).tanh()

    compiled = stator.compile(program)
    for turn in range(4):
        expected, x = (torch.arange(12.0).view(3, 4).div(9 + turn).requires_grad_() for _ in range(2))
        result = compiled(x)
        (result.t() if turn == 3 else result).sum().backward()
        program(expected).sum().backward()
        assert_same(x.grad, expected.grad, ROUNDED)
    assert len(runs) == 1
