"""The backend without code generation: runs a functional ATen graph operator by operator.

A graph with symbolic sizes gets a node that evaluates them in each call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx._lazy_graph_module import _LazyGraphModule

from stator.graph.ir.aten_graph import PlainGraphModule
from stator.graph.ir.size_bindings import (
    SizeBindings,
    evaluated,
    is_symbolic,
    read_sizes,
    result_bindings,
    size_bindings,
)
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.runtime.autograd_state import below_autograd
from stator.shapes.expr import Symbol
from stator.shapes.sym_node import to_expression


def run_eagerly(graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., Sequence[Any]]:
    """A `compile_graph` that returns the graph's own generated Python function. The function runs below autograd, so
    that its results are no views for autograd, as those of compiled kernels."""
    forward = python_function(with_numbers(graph))

    def run(*values: Any) -> Sequence[Any]:
        with below_autograd():
            return forward(*values)

    return run


def with_numbers(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of a functional graph without symbolic numbers among its arguments: its first node reads the sizes of the
    inputs and evaluates the expressions. Expressions over sizes that depend on data are evaluated by nodes behind the
    nodes that bind these. A graph without symbols is returned as it is."""
    bindings, of_results = size_bindings(gm.graph), result_bindings(gm.graph)
    if not bindings and not of_results:
        return gm
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    expressions: list[Any] = []
    numbers: dict[Any, fx.Node] = {}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        copies[node] = graph.node_copy(node)
    target = graph_target(_Evaluation(bindings, expressions), "evaluate_sizes")
    source = graph.call_function(target, tuple([copies[node] for node in placeholders]))

    def number(value: Any) -> fx.Node:
        expression = to_expression(value)
        if expression in numbers:
            return numbers[expression]
        symbols = tuple(expression.symbols)
        if bindings.keys().isdisjoint(symbols) or not bindings.keys() >= set(symbols):
            evaluate = graph_target(_LateEvaluation(symbols, expression), "evaluate")
            found = graph.call_function(evaluate, tuple([symbol_value(symbol) for symbol in symbols]))
        else:
            found = graph.call_function(operator.getitem, (source, len(expressions)))
            expressions.append(expression)
        numbers[expression] = found
        return found

    def symbol_value(symbol: Symbol) -> fx.Node:
        if symbol not in numbers and symbol in bindings:
            return number(symbol)
        if symbol not in numbers:
            node, place = of_results[symbol]
            numbers[symbol] = graph.call_function(graph_target(place.read, "read_size"), (copies[node],))
        return numbers[symbol]

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        args, kwargs = _mapped((node.args, dict(node.kwargs)), copies, number)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        copies[node].meta.update(node.meta)
    return PlainGraphModule(gm, graph)


@dataclass(frozen=True, slots=True)
class _LateEvaluation:
    """Evaluates an expression at the values of its symbols."""

    symbols: tuple[Symbol, ...]
    expression: Any

    def __call__(self, *values: int) -> Any:
        return evaluated(self.expression, dict(zip(self.symbols, values, strict=True)))


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Evaluates expressions at the sizes of the arguments."""

    bindings: SizeBindings
    expressions: list[Any]

    def __call__(self, *arguments: Any) -> list[Any]:
        sizes = read_sizes(self.bindings, arguments)
        return [evaluated(expression, sizes) for expression in self.expressions]


def _mapped(value: Any, copies: Mapping[fx.Node, fx.Node], number: Callable[[Any], fx.Node]) -> Any:
    if isinstance(value, fx.Node):
        return copies[value]
    if is_symbolic(value):
        if isinstance(value, (tuple, list)):
            made = [_mapped(item, copies, number) for item in value]
            return made if isinstance(value, list) else tuple(made)
        if isinstance(value, dict):
            return {name: _mapped(item, copies, number) for name, item in value.items()}
        return number(value)
    return fx.map_arg(value, copies.__getitem__)


def python_function(graph: fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """The graph's own generated Python function."""
    _LazyGraphModule.force_recompile(graph)
    return graph.forward


def keep_all(operator: OpOverload) -> bool:
    """A `keep` for `run_eagerly`: decompose only as_strided_scatter, which fails on non-contiguous tensors that require
    grad."""
    return operator is not torch.ops.aten.as_strided_scatter.default
