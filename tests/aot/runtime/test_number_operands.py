"""Graphs that run operator by operator take tensors in place of numbers, with eager's results, gradients and nodes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx

from stator.aot.runtime.number_operands import with_tensor_operands

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "radd": lambda x, number: number + x,
    "rmul": lambda x, number: number * x,
    "rsub": lambda x, number: number - x,
    "rdiv": lambda x, number: number / x,
    "pow": operator.pow,
}
REPLACED = {"add", "sub", "mul", "div", "radd", "rmul"}
NUMBERS = [0.1, 3, -0.0, 1e300, float("inf"), float("nan"), (1 << 53) + 1, 1 << 62, -7]


def traced(function: Callable[[Any], Any], x: torch.Tensor) -> fx.GraphModule:
    """The graph of a function, whose nodes know their values."""
    gm = fx.symbolic_trace(function)

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            n.meta["example_value"] = result = super().run_node(n)
            return result

    Noting(gm).run(x)
    return gm


def replaced(function: Callable[[Any], Any], x: torch.Tensor) -> tuple[Callable[..., Any], int]:
    graph, numbers = with_tensor_operands(traced(function, x))
    return partial(graph, *numbers), len(numbers)


def outcome(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    x = x.clone().requires_grad_(x.is_floating_point())
    y = function(x)
    if not y.requires_grad:
        return [y, y.dtype]
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    second = torch.autograd.grad(first.sum(), x) if first.requires_grad else ()
    edges = [(type(node).__name__, at) for node, at in y.grad_fn.next_functions]
    return [y.detach(), first.detach(), *second, y.dtype, type(y.grad_fn).__name__, edges]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        else:
            assert one == other


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_gradients_and_nodes_are_eagers(name: str, number: float, dtype: torch.dtype) -> None:
    def function(x: Any) -> Any:
        return OPERATORS[name](x, number)

    for x in (torch.tensor([0.3, -1.7, 0.0, 1e30], dtype=dtype), torch.tensor(0.3, dtype=dtype)):
        found, count = replaced(function, x)
        assert count == (name in REPLACED)
        assert_same(outcome(found, x), outcome(function, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("number", [0.1, 3])
def test_other_dtypes_keep_their_numbers(dtype: torch.dtype, number: float) -> None:
    """Half floats compute with the number in single precision; whole numbers are promoted."""
    assert replaced(lambda x: x * number, torch.ones(3, dtype=dtype))[1] == 0


@pytest.mark.parametrize("number", [True, 1j, 1 << 63])
def test_other_numbers_stay(number: Any) -> None:
    found = traced(lambda x: x.neg(), torch.ones(3))
    (neg,) = found.graph.find_nodes(op="call_method", target="neg")
    neg.op, neg.target, neg.args = "call_function", operator.mul, (*neg.args, number)
    assert with_tensor_operands(found) == (found, [])


def test_a_graph_with_several_numbers_keeps_its_inputs_and_its_parts() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (2 * x - 0.5) / 3 + x.sum() * 4

    x = torch.randn(5)
    given = traced(function, x)
    text = given.code
    graph, numbers = with_tensor_operands(given)
    assert [one.item() for one in numbers] == [2, 0.5, 3, 4]
    assert given.code == text
    assert_same(outcome(partial(graph, *numbers), x), outcome(function, x))


def test_numbers_made_in_inference_mode_serve_gradients() -> None:
    with torch.inference_mode():
        found, count = replaced(lambda x: x * 0.1, torch.ones(3))
    assert count == 1
    assert_same(outcome(found, torch.ones(3)), outcome(lambda x: x * 0.1, torch.ones(3)))
