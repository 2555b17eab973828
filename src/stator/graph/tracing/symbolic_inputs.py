"""Example inputs of a captured graph, with the symbolic sizes that its placeholders have in place of the numbers.

The symbols and what is known about them come from the capture; none are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeMode, FakeTensor, meta_of_real
from stator.graph.fake.unknown_sizes import UnknownSizes
from stator.graph.ir.size_bindings import SYMBOLIC, evaluated, symbolic_numbers
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment


def with_symbols(function: Callable[..., Any], example_inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs, with fakes of symbolic sizes for tensors, and SymInts for ints, where the placeholder's
    `meta["example_value"]` is one with hints. Other inputs stay as they are.

    Raises Unsupported where a symbolic layout is not that of the input, and for inputs that are symbolic themselves.
    """
    for value in example_inputs:
        if isinstance(value, SYMBOLIC) or (isinstance(value, torch.Tensor) and torch.SymInt in map(type, value.shape)):
            raise Unsupported("dynamic-shape", "an example input has a symbolic size")
    symbolic = symbolic_placeholders(function)
    if not symbolic:
        return example_inputs
    mode = FakeMode()
    found = list(example_inputs)
    for position, example in symbolic.items():
        found[position] = _with_symbols(mode, found[position], example)
    mode.forget()
    return found


def unknown_sizes(function: Callable[..., Any], inputs: Sequence[Any]) -> UnknownSizes | None:
    """The sizes of a captured graph that depend on data, beside those of its inputs (of `with_symbols`). None for a
    graph without operators that capture marked: others may not raise WrongAssumption when they run."""
    if not isinstance(function, fx.GraphModule):
        return None
    if not any(node.meta.get("data_dependent") for node in function.graph.nodes):
        return None
    for value in inputs:
        sizes = value.meta.shape if isinstance(value, FakeTensor) else (value,)
        environment = next((size.node.environment for size in sizes if type(size) is torch.SymInt), None)
        if environment is not None:
            return UnknownSizes(environment)
    return UnknownSizes()


def symbolic_placeholders(function: Callable[..., Any]) -> dict[int, Any]:
    """By position the symbolic examples of a graph's placeholders: fakes, or SymInts."""
    if not isinstance(function, fx.GraphModule):
        return {}
    found: dict[int, Any] = {}
    for position, node in enumerate(function.graph.nodes):
        if node.op != "placeholder":
            break
        example = node.meta.get("example_value")
        if isinstance(example, FakeTensor):
            meta = example.meta
            if _environment((*meta.shape, *meta.stride)) is not None:
                found[position] = example
        elif type(example) is torch.SymInt and _environment((example,)) is not None:
            found[position] = example
    return found


def _with_symbols(mode: FakeMode, given: Any, example: Any) -> Any:
    if type(example) is torch.SymInt:
        _check(_environment((example,)), example, given)
        return example
    meta, own = example.meta, meta_of_real(given, lazy=True)
    _check(_environment((*meta.shape, *meta.stride)), (meta.shape, meta.stride), (own.shape, own.stride))
    layout: TensorMeta = replace(own, shape=tuple(meta.shape), stride=tuple(meta.stride))
    return mode.from_real(given, layout)


def _environment(sizes: Sequence[Any]) -> Environment | None:
    """The environment of sizes that have symbols; None for other sizes."""
    return next((one.node.environment for one in symbolic_numbers(sizes)), None)


def _check(environment: Environment | None, symbolic: Any, given: Any) -> None:
    assert environment is not None
    if not all(one.node.has_hint() for one in symbolic_numbers(symbolic)):  # a size that the program marked
        return
    if evaluated(symbolic, environment.hints) != given:
        raise Unsupported("dynamic-shape", f"an input of layout {given} was captured as {symbolic}")
