"""Parameters, and modules with parameters, that the captured code makes for itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import stator


class Scale(nn.Module):
    """Registers a parameter in both ways."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((size,), 2.0))
        self.register_parameter("shift", nn.Parameter(torch.ones(size)))
        self.inner = nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.scale + self.shift)


def parameter(x: torch.Tensor) -> Any:
    weight = nn.Parameter(torch.arange(4.0))
    return x * weight, isinstance(weight, nn.Parameter), weight.requires_grad, weight.is_leaf, weight.grad_fn


def without_gradients(x: torch.Tensor) -> torch.Tensor:
    return x * nn.Parameter(x.detach() * 2, requires_grad=False)


def shared_memory(x: torch.Tensor) -> torch.Tensor:
    base = torch.zeros(4)
    weight = nn.Parameter(base)
    with torch.no_grad():
        weight += 3
    return x + base + weight


def modules(x: torch.Tensor) -> torch.Tensor:
    return nn.Sequential(Scale(4), nn.ReLU(), nn.LayerNorm(4))(x)


def initialised(x: torch.Tensor) -> Any:
    """Drawn from torch's generator as in eager."""
    linear = nn.Linear(4, 3)
    nn.init.constant_(linear.bias, 0.5)
    return linear(x), len(list(linear.named_parameters()))


def given() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


PROGRAMS = [parameter, without_gradients, shared_memory, modules]


@pytest.mark.parametrize(
    ("program", "backend"),
    [*[(one, backend) for one in PROGRAMS for backend in ("eager", "inductor")], (initialised, "eager")],
)
def test_they_stay_in_one_graph(program: Any, backend: str) -> None:
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    with torch.no_grad():
        for seed in range(2):
            torch.manual_seed(seed)
            expected = program(given())
            torch.manual_seed(seed)
            torch.testing.assert_close(compiled(given()), expected, rtol=1e-5, atol=1e-6)


def test_gradients_pass_by_them() -> None:
    one, other = given().requires_grad_(), given().requires_grad_()
    modules(one).square().sum().backward()
    stator.compile(modules, backend="aot_eager", fullgraph=True)(other).square().sum().backward()
    torch.testing.assert_close(other.grad, one.grad)


def kept(x: torch.Tensor) -> Any:
    weight = nn.Parameter(x.detach() * 2)
    return (x @ weight.t()).sum(), weight


def test_one_that_leaves_the_graph_is_made_by_the_program() -> None:
    result, weight = stator.compile(kept, backend="eager")(given())
    result.backward()
    expected, own = kept(given())
    expected.backward()
    assert type(weight) is nn.Parameter
    torch.testing.assert_close(weight.grad, own.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_without_gradients_leaves_the_graph_as_a_parameter(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        weight = nn.Parameter(x * 2, requires_grad=False)
        return weight, [weight], weight + 1

    weight, held, _ = stator.compile(program, backend=backend, fullgraph=True)(given())
    assert type(weight) is nn.Parameter and held[0] is weight and not weight.requires_grad
    assert torch.equal(weight, given() * 2)


class Late(nn.Module):
    """Makes what it needs when it is first called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "linear" not in self._modules:
            self.linear = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.ones(4))
        return self.linear(x) * self.scale


@pytest.mark.parametrize("grad", [False, True])
def test_what_a_module_makes_for_later_is_registered(grad: bool) -> None:
    one, other = Late(), Late()
    compiled = stator.compile(other, backend="eager")
    with torch.set_grad_enabled(grad):
        for seed in range(3):
            torch.manual_seed(seed)
            expected = one(given())
            torch.manual_seed(seed)
            torch.testing.assert_close(compiled(given()), expected)
    names = [[name for name, _ in module.named_parameters()] for module in (one, other)]
    assert names[0] == names[1] == ["scale", "linear.weight", "linear.bias"]
