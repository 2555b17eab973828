"""Makes tensors of the Python numbers that operators of a graph take, once and not in each call.

In `x * 2` eager makes a tensor of the number and converts that to the dtype of `x`: both take as long as the product.
Only graphs that run operator by operator are changed.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from stator.graph.ir.aten_graph import PlainGraphModule

# Operators that ATen has for tensors alone: their Python bindings make tensors of numbers. Those that commute are
# called with the tensor first, as `Tensor.__radd__` and `Tensor.__rmul__` do.
_COMMUTATIVE = {operator.add, operator.mul}
_OF_TENSORS = {*_COMMUTATIVE, operator.sub, operator.truediv}
# Kernels for half floats compute with the number in single precision.
_DTYPES = (torch.float32, torch.float64)


def with_tensor_operands(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A captured graph with more inputs in front, and zero-dim tensors for these: its operators take them in place of
    numbers, wherever eager computes with the number in the dtype of the other operand."""
    if not any(map(_operand_and_number, gm.graph.nodes)):
        return gm, []
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    first = next(iter(graph.nodes))
    tensors: list[torch.Tensor] = []
    for node in graph.nodes:
        if (found := _operand_and_number(node)) is not None:
            operand, number = found
            tensors.append(_like_eagers(number, operand.meta["example_value"].dtype))
            with graph.inserting_before(first):
                node.args = operand, graph.placeholder(f"number_{len(tensors)}")
    return PlainGraphModule(gm, graph), tensors


def _operand_and_number(node: fx.Node) -> tuple[fx.Node, int | float] | None:
    """The operands of an operator of a tensor and a number that ATen makes a tensor of the operand's dtype."""
    if node.op != "call_function" or node.target not in _OF_TENSORS or node.kwargs:
        return None
    operand, number = node.args
    if node.target in _COMMUTATIVE and isinstance(number, fx.Node):
        operand, number = number, operand
    if not isinstance(operand, fx.Node) or type(number) not in (int, float):
        return None
    example = operand.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or example.device.type != "cpu" or example.dtype not in _DTYPES:
        return None
    fits = type(number) is float or -(1 << 63) <= number < 1 << 63  # type: ignore[operator]
    return (operand, number) if fits else None  # type: ignore[return-value]


def _like_eagers(number: int | float, dtype: torch.dtype) -> torch.Tensor:
    """The tensor that eager makes of a number, converted as eager converts it."""
    with torch._C._InferenceMode(False), torch.device("cpu"):
        return torch.tensor(number, dtype=torch.int64 if type(number) is int else torch.float64).to(dtype)
