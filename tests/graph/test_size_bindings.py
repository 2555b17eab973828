"""A graph's symbols are found in its inputs, and everything that depends on them is evaluated in each call."""

from __future__ import annotations

import pytest
import torch

from stator.base.errors import CompileError
from stator.graph.ir.aten_graph import AtenGraph
from stator.graph.ir.size_bindings import (
    SizeBinding,
    bind_sizes,
    evaluated,
    has_symbols,
    read_sizes,
    size_bindings,
    symbols_of,
    symbols_of_graph,
)
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment
from stator.shapes.sym_node import to_sym_int


def size(environment: Environment, name: str, hint: int) -> torch.SymInt:
    return to_sym_int(environment, environment.size(name, hint))


def meta(*shape: object) -> TensorMeta:
    return TensorMeta(shape, (1,) * len(shape), torch.float32, torch.device("cpu"))


def test_a_symbol_is_the_first_size_that_equals_it() -> None:
    environment = Environment()
    a, b, c = (size(environment, name, 4) for name in "abc")
    found = bind_sizes([meta(a + b, 3), meta(2, b), meta(a, b), c])
    assert {str(symbol): binding for symbol, binding in found.items()} == {
        "b": SizeBinding(1, 1),
        "a": SizeBinding(2, 0),
        "c": SizeBinding(3, None),
    }
    values = read_sizes(found, [torch.empty(9, 3), torch.empty(2, 5), torch.empty(4, 5), 7])
    assert {str(symbol): value for symbol, value in values.items()} == {"a": 4, "b": 5, "c": 7}


def test_expressions_are_evaluated_wherever_they_stand() -> None:
    environment = Environment()
    a, b = (size(environment, name, 4) for name in "ab")
    values = {a.node.value: 6, b.node.value: 9}
    given = ([a * b, -1], {"end": a // 4}, slice(a, None, b), a / 4, "text", a > b)
    assert evaluated(given, values) == ([54, -1], {"end": 1}, slice(6, None, 9), 1.5, "text", False)
    assert {str(symbol) for symbol in symbols_of(given)} == {"a", "b"}


def test_a_symbol_without_an_input_is_an_error() -> None:
    a = size(Environment(), "a", 4)
    with pytest.raises(CompileError, match="no input of the graph has"):
        evaluated(a, {})


def test_graphs_say_whether_their_inputs_have_symbols() -> None:
    a = size(Environment(), "a", 4)
    graph = AtenGraph()
    x = graph.placeholder("x")
    x.meta["val"] = meta(3)
    assert not has_symbols(graph)
    n = graph.placeholder("n")
    n.meta["val"] = a
    expanded = graph.call_function(torch.ops.aten.expand.default, (x, [a * 2, 3]))
    expanded.meta["val"] = meta(a * 2, 3)
    graph.output((expanded,))
    assert has_symbols(graph)
    assert size_bindings(graph) == {a.node.value: SizeBinding(1, None)}
    assert symbols_of_graph(graph) == {a.node.value}
