"""A backward with symbolic sizes runs code for all sizes only where all holds that this code relies on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from symbolic_graphs import SymbolicGraph
from torch import fx

import stator
from stator import aot
from stator.aot.runtime.symbolic_backward import SymbolicBackward
from stator.base.errors import Unsupported
from stator.graph.ir.size_bindings import environment_of, has_symbols
from stator.runtime.host import BoundSizes
from stator.shapes.conditions import compare


def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.sin() * x.sum(0),)


def gradient(function: Callable[..., Any], rows: int) -> torch.Tensor:
    torch.manual_seed(rows)
    x = torch.randn(rows, 4, requires_grad=True)
    function(x)[0].square().sum().backward()
    assert x.grad is not None
    return x.grad


class Compiler:
    """Runs operator by operator. The graphs of backwards are noted; `of_symbols` is called with those with symbols."""

    def __init__(self, of_symbols: Callable[[fx.GraphModule], None]) -> None:
        self.of_symbols = of_symbols
        self.backwards: list[bool] = []  # whether they had symbols

    def __call__(self, gm: fx.GraphModule, examples: Any) -> Any:
        if gm.meta["part"] == "backward":
            symbolic = has_symbols(gm.graph)
            if symbolic:
                self.of_symbols(gm)
            self.backwards.append(symbolic)
        return aot.run_eagerly(gm, examples)

    def compiled(self, rows: int) -> Any:
        graph = SymbolicGraph(program, [torch.randn(rows, 4, requires_grad=True)])
        return aot.compile_training(graph.module, [torch.randn(rows, 4, requires_grad=True)], self, keep=aot.keep_all)


def test_facts_of_a_late_backward_are_checked_in_each_call() -> None:
    def rely_on_few_rows(gm: fx.GraphModule) -> None:
        environment = environment_of(gm.graph)
        assert environment is not None
        rows = next(iter(environment.ranges))
        assert environment.decide(compare("<=", rows, 8))

    compiler = Compiler(rely_on_few_rows)
    compiled = compiler.compiled(5)
    for rows in (5, 7, 9, 3, 9):
        torch.testing.assert_close(gradient(compiled, rows), gradient(program, rows))
    assert compiler.backwards == [True, False]  # one for up to eight rows, one for nine


def test_a_backward_that_cannot_have_symbols_is_compiled_for_a_few_sizes() -> None:
    def refuse(gm: fx.GraphModule) -> None:
        raise Unsupported("dynamic-shape", "no symbols here")

    compiler = Compiler(refuse)
    compiled = compiler.compiled(5)
    for rows in (5, *range(2, 14), 5):
        torch.testing.assert_close(gradient(compiled, rows), gradient(program, rows))
    assert compiler.backwards == [False] * 8


def test_a_backward_for_all_sizes_is_compiled_once() -> None:
    compiler = Compiler(lambda gm: None)
    compiled = compiler.compiled(5)
    for rows in (5, *range(2, 14), 5):
        torch.testing.assert_close(gradient(compiled, rows), gradient(program, rows))
    assert compiler.backwards == [True]


def test_a_number_that_no_layout_depends_on_binds_no_code_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the counter of a loop, with more values than code is kept for."""
    bound: list[str] = []

    def noted(owner: Any, name: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: bound.append(name) or original(*given))

    def turn(x: torch.Tensor, weight: torch.Tensor, at: int) -> torch.Tensor:
        inside = x.sin()
        return torch.tanh(x[:, at] @ weight + inside[:, at] @ weight).sin() * x[:, at, :4]

    compiled = stator.compile(turn, dynamic=True)
    weight = torch.randn(6, 4, requires_grad=True)
    x = torch.randn(3, 20, 6, requires_grad=True)
    for at in range(16):
        if at == 4:
            noted(BoundSizes, "__missing__")
            noted(SymbolicBackward, "_compile")
        tangent = torch.randn(3, 4)
        actual = torch.autograd.grad(compiled(x, weight, at), (x, weight), tangent)
        expected = torch.autograd.grad(turn(x, weight, at), (x, weight), tangent)
        torch.testing.assert_close(actual, expected)
    assert not bound
