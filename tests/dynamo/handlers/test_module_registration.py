"""Modules whose parameters, buffers, submodules and hooks are replaced, removed or added while captured code runs: what
is read afterwards, in the same call and in later ones, is what eager would read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

import stator


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.register_buffer("q", torch.arange(4.0))
        self.current: Any = None
        self.calls = 0


_programs: list[Any] = []


def program(function: Callable[[Any, torch.Tensor], Any]) -> Callable[[Any, torch.Tensor], Any]:
    _programs.append(pytest.param(function, id=function.__name__))
    return function


@program
def entry_of_the_modules(self, x):
    y = self.a(x)
    self._modules["a"] = self.b
    return y + self.a(x)


@program
def entry_of_the_modules_is_deleted(self, x):
    y = self.a(x) if hasattr(self, "a") else x
    self._modules.pop("a", None)
    return y + (self.a(x) if hasattr(self, "a") else 1)


@program
def attribute_is_deleted(self, x):
    y = self.b(x)
    if hasattr(self, "a"):
        y = y + self.a(x)
        del self.a
    return y + (self.a(x) if hasattr(self, "a") else 1)


@program
def entry_of_the_buffers(self, x):
    y = self.q * x
    self._buffers["q"] = self.q + 1
    return y + self.q


@program
def entry_of_the_parameters(self, x):
    y = self.a(x)
    self.a._parameters["bias"] = self.b.bias
    return y + self.a(x)


@program
def store_is_replaced(self, x):
    y = self.a(x)
    self._modules = {"a": self._modules["b"], "b": self._modules["a"]}
    return y * self.a(x)


@program
def modules_are_swapped(self, x):
    y = self.a(x)
    self.a, self.b = self.b, self.a
    return y - 2 * self.a(x)


@program
def parameters_are_swapped(self, x):
    self.a.weight, self.b.weight = self.b.weight, self.a.weight
    return self.a(x) - 2 * self.b(x)


@program
def module_becomes_none(self, x):
    y = x if self.a is None else self.a(x)
    self.a = None
    return y


@program
def parameter_becomes_none(self, x):
    y = self.a(x)
    self.a.bias = None
    return y + self.a(x)


@program
def names_are_added(self, x):
    self.c = self.a
    self.w = self.a.weight
    return self.c(x) @ self.w, [name for name, _ in self.named_parameters(remove_duplicate=False)]


@program
def plain_attribute_becomes_a_module(self, x):
    self.current = self.a if self.calls % 2 else self.b
    self.calls += 1
    return self.current(x), list(dict(self.named_children())), "current" in self.__dict__


@program
def same_again(self, x):
    self.b.weight = self.b.weight
    return self.a(self.b(x))


@program
def hook_is_put_into_the_dictionary(self, x):
    y = self.a(x)
    self.a._forward_hooks[0] = lambda module, inputs, output: output * 2
    y = y + self.a(x)
    del self.a._forward_hooks[0]
    return y - 3 * self.a(x)


@pytest.mark.parametrize("function", _programs)
def test_in_one_graph_as_in_eager(function: Callable[[Any, torch.Tensor], Any]) -> None:
    plain, compiled_one = Two(), Two()
    compiled = stator.compile(function, backend="eager", fullgraph=True)
    for seed in range(4):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        expected, actual = function(plain, x), compiled(compiled_one, x)
        _assert_same(actual, expected)
        _assert_same(list(compiled_one.state_dict().items()), list(plain.state_dict().items()))
        assert list(compiled_one._modules) == list(plain._modules)


def _assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected) and actual.requires_grad == expected.requires_grad
    elif isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            _assert_same(one, other)
    else:
        assert actual == expected


def test_gradients_reach_the_parameter_that_was_put_there() -> None:
    def function(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.a.weight = module.b.weight
        return module.a(x).sum()

    module = Two()
    old = module.a.weight
    stator.compile(function, backend="aot_eager", fullgraph=True)(module, torch.ones(3, 4)).backward()
    assert module.a.weight is module.b.weight and module.b.weight.grad is not None and old.grad is None


def test_a_module_is_moved_to_where_it_is() -> None:
    def function(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.a = module.a.to(x.dtype)
        return module.a(x)

    module, x = Two(), torch.ones(3, 4)
    assert torch.equal(stator.compile(function, backend="eager")(module, x), function(module, x))


def test_registration_hooks_are_called() -> None:
    seen = []

    def function(module: Any, x: torch.Tensor) -> torch.Tensor:
        module.a = module.b
        return module.a(x)

    compiled, module = stator.compile(function, backend="eager"), Two()
    compiled(module, torch.ones(3, 4))
    handle = nn.modules.module.register_module_module_registration_hook(lambda owner, name, child: seen.append(name))
    try:
        compiled(module, torch.ones(3, 4))
    finally:
        handle.remove()
    assert seen == ["a"]


def test_hooks_that_are_always_called_are_when_forward_raises() -> None:
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Raises()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.inner(x)
            except ValueError:
                return x * 2

    seen: list[Any] = []
    module = Caller()
    compiled = stator.compile(module, backend="eager", fullgraph=True)
    compiled(torch.ones(2))
    module.inner.register_forward_hook(lambda *arguments: seen.append(len(arguments)), always_call=True)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert seen == [3, 3]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_global_backward_hooks_with_a_graph_before_them(backend: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    compiled = stator.compile(module, backend=backend)
    handle = register_module_full_backward_hook(lambda _, given, __: (given[0] * 2,) if given[0] is not None else None)
    try:
        found = []
        for one in (module, compiled):
            x = torch.ones(3, 4, requires_grad=True)
            one(x).sum().backward()
            found.append(x.grad)
    finally:
        handle.remove()
    assert torch.allclose(*found)
