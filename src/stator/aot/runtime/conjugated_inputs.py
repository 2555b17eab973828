"""Rewrites programs with lazily conjugated or negated inputs as programs of the memory behind these.

Compiled code reads memory. It takes views without the lazy bits, and applies the bits itself. A result that views such
an input, or a write to it, then reaches the same memory as in eager. The bits of an input are fixed: inputs with other
bits compile again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from stator.graph.fake.fake_tensor import FakeTensor
from stator.graph.ir.aten_graph import PlainGraphModule

from .wrappers import WrappedGraph, no_wrap

aten = torch.ops.aten
LazyBits = tuple[Any, ...]  # conj and neg views, each its own inverse


def read_lazy_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> WrappedGraph:
    """A wrapper: replaces lazily conjugated or negated inputs with views of their memory."""
    bits = [lazy_bits_of(value) for value in example_inputs]
    if not any(bits):
        return gm, example_inputs, no_wrap
    themselves = [entry for entry in _returned_inputs(gm) if bits[entry[1]]]

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            results = inner(*memory_views(args, bits))
            if not themselves:
                return results
            results = list(results)
            for position, index in themselves:
                results[position] = args[index]
            return tuple(results)

        return call

    return _seeing(gm, bits), memory_views(example_inputs, bits), wrap


def compile_on_memory(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    compile_function: Callable[[Callable[..., Any], Sequence[Any]], Callable[..., Any]],
) -> Callable[..., Any]:
    """Compile a function of lazily conjugated or negated tensors as a function of their memory. The function must
    return none of its arguments. The compiled function may take more arguments behind these."""
    bits = [lazy_bits_of(value) for value in arguments]
    if not any(bits):
        return compile_function(function, arguments)

    def seeing(*lying: Any) -> Any:
        return function(*map(toggle_bits, lying, bits))

    inner, count = compile_function(seeing, memory_views(arguments, bits)), len(bits)
    return lambda *values: inner(*memory_views(values[:count], bits), *values[count:])


def lazy_bits_of(value: Any) -> LazyBits:
    """The lazy views of a tensor; none for other values."""
    if not isinstance(value, torch.Tensor):
        return ()
    return (aten._conj.default,) * value.is_conj() + (aten._neg_view.default,) * value.is_neg()


def toggle_bits(value: Any, bits: LazyBits) -> Any:
    """Apply the lazy views, each of which is its own inverse."""
    for view in bits:
        value = view(value)
    return value


def as_input(value: torch.Tensor) -> torch.Tensor:
    """Mark a traced tensor as an input of the program."""
    if isinstance(value, FakeTensor):
        value.of_input = True
    return value


def memory_views(values: Sequence[Any], bits: Sequence[LazyBits]) -> list[Any]:
    """The values without their lazy bits, as views that autograd tracks. A value given twice becomes one view."""
    views: dict[int, Any] = {}
    found = []
    for value, own in zip(values, bits, strict=True):
        if own:
            if id(value) not in views:
                with torch.enable_grad():
                    view = views[id(value)] = toggle_bits(value, own)
                if view.requires_grad and aten._conj.default in own:
                    view.register_hook(_conjugated_at_once)
            value = views[id(value)]
        found.append(value)
    return found


def _conjugated_at_once(gradient: torch.Tensor) -> torch.Tensor:
    """The view's gradient such that the input's gradient, its conjugate, is not lazy."""
    return gradient.conj().resolve_conj().conj()


def _seeing(gm: fx.GraphModule, bits: Sequence[LazyBits]) -> fx.GraphModule:
    """A copy of the graph that applies the lazy views to its placeholders."""
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
    """(position among the results, index) of inputs that a graph returns unchanged or after writing to them."""
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
