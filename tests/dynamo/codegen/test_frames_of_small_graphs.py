"""A frame whose graph is too small to gain runs its own code up to the exit."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
import torch

import stator
from stator.base import counters
from stator.dynamo.bytecode import decode
from stator.dynamo.cache.entry import cache_of

Program = Callable[[torch.Tensor], torch.Tensor]
pytestmark = [pytest.mark.fixed_sizes, pytest.mark.usefixtures("small_graphs")]


def branch(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    if y.sum() > 4:
        return y.exp()
    return y - x


def loop(x: torch.Tensor) -> torch.Tensor:
    turns, y = 0, x * 2
    while y.sum() < 20:
        y = y * y + 1
        turns += 1
    return y * turns


def handled(x: torch.Tensor) -> torch.Tensor:
    found = []
    for factor in (1.0, 2.0, 3.0):
        try:
            found.append(x * factor)
            if found[-1].sum() > 4:
                raise ValueError
        except ValueError:
            found.append(x)
    return torch.stack(found).sum()


def asks(x: torch.Tensor) -> torch.Tensor:
    y = x * x if torch.compiler.is_compiling() else x * x * 1
    return y if y.sum() > 4 else -y


def leaf(size: int, value: float) -> torch.Tensor:
    return torch.full((size,), value).requires_grad_()


def check(compiled: Program, program: Program, size: int, value: float) -> None:
    """Equal results and gradients, to the last bit."""
    mine, eagers = leaf(size, value), leaf(size, value)
    result, expected = compiled(mine), program(eagers)
    assert torch.equal(result, expected)
    result.sum().backward()
    expected.sum().backward()
    assert torch.equal(mine.grad, eagers.grad)  # type: ignore[arg-type]


def runs_own_code(version: Any, program: Program) -> bool:
    return version.code is None or operations(version.code) == operations(program.__code__)


def operations(code: CodeType) -> list[str]:
    return [instruction.opname for instruction in decode(code)][:4]


@pytest.mark.parametrize("program", [branch, loop, handled])
def test_the_frame_s_own_code_runs(program: Program) -> None:
    compiled = stator.compile(program)
    for value in (0.5, 0.25, 2.0, 0.125, 3.0, 0.5):
        check(compiled, program, 8, value)
    versions = cache_of(compiled).versions
    assert versions
    assert all(runs_own_code(version, program) for version in versions)


def test_nothing_is_compiled() -> None:
    before = counters.counts["kernels.wanted"]
    test_the_frame_s_own_code_runs(branch)
    assert counters.counts["kernels.wanted"] == before


def test_more_data_is_compiled() -> None:
    compiled = stator.compile(branch)
    check(compiled, branch, 8, 0.5)
    mine, eagers = leaf(1 << 16, 0.5), leaf(1 << 16, 0.5)
    torch.testing.assert_close(compiled(mine), branch(eagers))
    assert [runs_own_code(version, branch) for version in cache_of(compiled).versions] == [False, True]


def test_a_frame_that_was_told_it_is_compiled_stays_a_graph() -> None:
    compiled = stator.compile(asks)
    check(compiled, asks, 8, 2.0)
    assert not any(runs_own_code(version, asks) for version in cache_of(compiled).versions)


def test_a_break_is_counted_and_explained_once() -> None:
    explanation = stator.explain(branch)(leaf(8, 0.5))
    assert (explanation.graph_count, explanation.graph_break_count, len(explanation.left_to_eager)) == (2, 1, 2)
    stator.reset()
    before = counters.counts["graph_breaks"], counters.counts["frames"]
    stator.compile(branch)(leaf(8, 0.5))
    assert (counters.counts["graph_breaks"], counters.counts["frames"]) == (before[0] + 1, before[1] + 2)
