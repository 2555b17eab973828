"""Parameters of a class of the program's own, which adds to nn.Parameter: captured by their class."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import stator
from stator.base import counters


class Tagged(nn.Parameter):
    """With an attribute, a method, a property, and an attribute of the class."""

    bias = 1.5

    def __new__(cls, data: torch.Tensor, tag: str = "a") -> Any:
        made = super().__new__(cls, data)
        made.tag = tag
        return made

    def doubled(self) -> torch.Tensor:
        return self * 2

    @property
    def third(self) -> torch.Tensor:
        return self / 3

    @third.setter
    def third(self, value: int) -> None:
        self.written = value


class Layer(nn.Module):
    def __init__(self, kind: Any = Tagged) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = kind(torch.randn(4, 4))
        self.linear = nn.Linear(4, 4)
        self.linear.weight = kind(self.linear.weight.data.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x) @ self.weight)


class Asking(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        if isinstance(weight, Tagged) and type(weight) is not nn.Parameter:
            x = x @ weight.doubled() + weight.third.sum() + weight.bias
        weight.third = 7
        return x + (1 if weight.tag == "a" else 2) + weight.written


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", [Layer, Asking])
def test_trained_in_one_graph(kind: Any, backend: str) -> None:
    stator.reset()
    model = kind()
    other = copy.deepcopy(model)
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        assert type(one) is type(same)
        if isinstance(one, Tagged):
            same.tag = one.tag
    compiled = stator.compile(other, backend=backend)
    x = torch.randn(3, 4)
    counters.clear()
    for _ in range(2):
        expected, actual = model(x), compiled(x)
        assert type(actual) is torch.Tensor
        torch.testing.assert_close(actual, expected)
        expected.square().sum().backward()
        actual.square().sum().backward()
    assert counters.counts["graphs"] == 1 and not counters.counts["graph_breaks"]
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(same.grad, one.grad)


def test_another_class_or_attribute_compiles_anew() -> None:
    stator.reset()
    model = Asking()
    compiled = stator.compile(model, backend="eager")
    x = torch.randn(3, 4)
    model.weight.written = 1
    for tag in ("a", "b"):
        model.weight.tag = tag
        assert torch.equal(compiled(x), model(x))

    class Other(Tagged):
        def doubled(self) -> torch.Tensor:
            return self * 3

    model.weight = Other(model.weight.data)
    assert torch.equal(compiled(x), model(x))


def test_a_class_that_comes_to_change_an_operator() -> None:
    class Changing(nn.Parameter):
        pass

    stator.reset()
    model = Layer(Changing)
    compiled = stator.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(3, 4)
    assert torch.equal(compiled(x), model(x))
    Changing.__rmatmul__ = lambda self, other: other  # type: ignore[attr-defined]
    assert torch.equal(compiled(x), model(x))


class WithOperator(nn.Parameter):
    def __add__(self, other: Any) -> Any:
        return 5


class WithMethod(nn.Parameter):
    def relu(self) -> Any:
        return 5


class Answering(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {})) * 2


class Behind:
    def __getattr__(self, name: str) -> Any:
        return 5


class WithBase(nn.Parameter, Behind):
    pass


@pytest.mark.parametrize("kind", [WithOperator, WithMethod, Answering, WithBase])
def test_classes_that_change_something(kind: Any) -> None:
    def function(x: torch.Tensor, weight: Any) -> Any:
        return torch.sin(x), weight + 1, weight.relu(), torch.relu(weight)

    weight, x = kind(torch.randn(3)), torch.randn(3)
    expected = function(x, weight)
    stator.reset()
    for one, other in zip(stator.compile(function, backend="eager", fullgraph=True)(x, weight), expected, strict=True):
        assert type(one) is type(other)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
