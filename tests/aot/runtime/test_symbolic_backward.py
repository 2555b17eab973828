"""A backward with symbolic sizes runs code for all sizes only where all holds that this code relies on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from symbolic_graphs import SymbolicGraph
from torch import fx

from stator import aot
from stator.base.errors import Unsupported
from stator.graph.ir.size_bindings import environment_of, has_symbols
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
