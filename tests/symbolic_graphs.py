"""Graphs whose inputs have symbolic sizes, as capture makes them, for tests below capture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from stator.graph.fake.fake_mode import FakeMode
from stator.graph.ir.size_bindings import bind_sizes, read_sizes
from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment
from stator.shapes.sym_node import to_sym_int


class SymbolicGraph:
    """A function as a graph of torch calls. Every size above 1 of its inputs is a symbol, and every int.

    fixed: positions of inputs whose sizes are constants, such as parameters.
    """

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Any], fixed: Collection[int] = ()) -> None:
        self.environment = Environment()
        self.module = fx.symbolic_trace(function)
        mode = FakeMode()
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        self.examples = []
        for at, (node, value) in enumerate(zip(placeholders, inputs, strict=True)):
            example = self._size(f"n{at}", value) if type(value) is int else self._fake(mode, at, value, at in fixed)
            node.meta["example_value"] = example
            self.examples.append(example)
        output = next(iter(reversed(self.module.graph.nodes)))
        if not isinstance(output.args[0], (tuple, list)):
            output.args = ((output.args[0],),)
            self.module.recompile()
        self.bindings = bind_sizes(self.examples)

    def _size(self, name: str, value: int) -> Any:
        return to_sym_int(self.environment, self.environment.size(name, value))

    def _fake(self, mode: FakeMode, at: int, tensor: torch.Tensor, fixed: bool) -> Any:
        """Permuted and row-major layouts get symbolic strides."""
        if fixed:
            return mode.from_real(tensor)
        shape = [self._size(f"s{at}_{dim}", size) for dim, size in enumerate(tensor.shape)]
        order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), -tensor.shape[dim], dim))
        strides: list[Any] = [1] * tensor.dim()
        for dim, stride in zip(order, contiguous_strides([shape[dim] for dim in order]), strict=True):
            strides[dim] = stride
        meta = TensorMeta(tuple(shape), tuple(strides), tensor.dtype, tensor.device, tensor.storage_offset())
        return mode.make(meta, requires_grad=tensor.requires_grad)

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether what was compiled is right for inputs of these sizes."""
        return self.environment.holds(read_sizes(self.bindings, inputs))
