"""Programs some of whose inputs are conjugated or negated lazily, as programs of the memory behind them.

Compiled code reads memory: it is given the same memory seen as it is, and conjugates it itself. What it returns of such
an input, or writes to it, is a view of that memory, or a write to it, as in eager. Which bits an input has is fixed:
those who call again with others compile again. Nothing is traced or compiled here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from stator.graph.fake.fake_tensor import FakeTensor
from stator.graph.ir.graph_text import PlainGraphModule

from .wrappers import Wrapped, unchanged

aten = torch.ops.aten
Bits = tuple[Any, ...]  # the views, each its own inverse, that lead from the memory to what is seen


def see_memory(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Wrapped:
    """A graph as one whose inputs are seen as they lie in memory; a wrapper."""
    bits = [bits_of(value) for value in example_inputs]
    if not any(bits):
        return gm, example_inputs, unchanged
    themselves = [entry for entry in _returned_inputs(gm) if bits[entry[1]]]

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            results = inner(*as_they_lie(args, bits))
            if not themselves:
                return results
            results = list(results)
            for position, index in themselves:
                results[position] = args[index]
            return tuple(results)

        return call

    return _seeing(gm, bits), as_they_lie(example_inputs, bits), wrap


def compile_lying(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    compile_function: Callable[[Callable[..., Any], Sequence[Any]], Callable[..., Any]],
) -> Callable[..., Any]:
    """Compile any function that returns none of its arguments as one that sees memory. What is compiled may take more
    arguments behind those."""
    bits = [bits_of(value) for value in arguments]
    if not any(bits):
        return compile_function(function, arguments)

    def seeing(*lying: Any) -> Any:
        return function(*map(seen_with, lying, bits))

    inner, count = compile_function(seeing, as_they_lie(arguments, bits)), len(bits)
    return lambda *values: inner(*as_they_lie(values[:count], bits), *values[count:])


def bits_of(value: Any) -> Bits:
    """Those of a tensor; none of anything else."""
    if not isinstance(value, torch.Tensor):
        return ()
    return (aten._conj.default,) * value.is_conj() + (aten._neg_view.default,) * value.is_neg()


def seen_with(value: Any, bits: Bits) -> Any:
    """What lies in memory as it is seen; and the other way round."""
    for view in bits:
        value = view(value)
    return value


def as_input(value: torch.Tensor) -> torch.Tensor:
    """It stands for an input of the program."""
    if isinstance(value, FakeTensor):
        value.of_input = True
    return value


def as_they_lie(values: Sequence[Any], bits: Sequence[Bits]) -> list[Any]:
    """The values without their bits, as views that autograd follows; one that is given twice is one view."""
    views: dict[int, Any] = {}
    found = []
    for value, own in zip(values, bits, strict=True):
        if own:
            if id(value) not in views:
                with torch.enable_grad():
                    view = views[id(value)] = seen_with(value, own)
                if view.requires_grad and aten._conj.default in own:
                    view.register_hook(_conjugated_at_once)
            value = views[id(value)]
        found.append(value)
    return found


def _conjugated_at_once(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient of what lies there, such that its conjugate, which is the input's, is none that is lazy."""
    return gradient.conj().resolve_conj().conj()


def _seeing(gm: fx.GraphModule, bits: Sequence[Bits]) -> fx.GraphModule:
    """A copy of the graph that makes the views of its placeholders."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    last = placeholders[-1]
    for placeholder, own in zip(placeholders, bits, strict=True):
        if not own:
            continue
        users = list(placeholder.users)
        seen = placeholder
        for view in own:
            with graph.inserting_after(last):
                last = seen = graph.call_function(view, (seen,))
        with graph.inserting_after(last):
            last = seen = graph.call_function(as_input, (seen,))
        for user in users:
            user.replace_input_with(placeholder, seen)
    made = PlainGraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _returned_inputs(gm: fx.GraphModule) -> list[tuple[int, int]]:
    """(position among the results, index) of inputs that a graph returns themselves, or as what was written to them."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    indices = {node: index for index, node in enumerate(placeholders)}
    examples = {
        id(node.meta["example_value"]): index
        for node, index in indices.items()
        if node.meta.get("example_value") is not None
    }
    (results,) = gm.graph.output_node().args
    found = []
    for position, node in enumerate(results if isinstance(results, (tuple, list)) else ()):
        if isinstance(node, fx.Node):
            index = indices.get(node, examples.get(id(node.meta.get("example_value"))))
            if index is not None:
                found.append((position, index))
    return found
