"""Parameters, and modules with parameters, that the captured code makes for itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import BY_BACKEND, assert_same
from torch import nn
from torch.utils import _pytree as pytree

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


# ---- made of an input: each call makes it, and it leaves the graph ----


class Holder(nn.Module):
    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


existing = nn.Parameter(torch.eye(4))


def of_input(x: torch.Tensor) -> Any:
    weight = nn.Parameter(x)
    return weight * 2, weight, isinstance(weight, nn.Parameter), weight.is_leaf


def two_of_one_input(x: torch.Tensor) -> Any:
    one, other = nn.Parameter(x), nn.Parameter(x)
    return one * 2 + other.sin(), one, other, one is other


def of_a_parameter(x: torch.Tensor) -> Any:
    weight = nn.Parameter(existing)
    return x @ weight, [weight, weight]


def written_without_gradients(x: torch.Tensor) -> Any:
    weight = nn.Parameter(x)
    with torch.no_grad():
        weight.mul_(2)
    weight.note = "doubled"
    return weight * 3, weight, x


def in_a_module(x: torch.Tensor) -> Any:
    module = Holder(nn.Parameter(x))
    return module(x.t()), module


def swapped_in(x: torch.Tensor) -> Any:
    weight = nn.Parameter(x)
    return torch.func.functional_call(Holder(existing), {"weight": weight}, (x.t(),)), weight


def modules_of_existing_tensors(x: torch.Tensor) -> Any:
    made, plain, empty = Holder(existing), Holder(x.t() * 2), nn.Sequential(nn.ReLU(), nn.Dropout(0.0))
    made.register_buffer("scale", x.t() * 3)
    return made(x), plain(x), empty(x) @ made.scale, {"modules": [made, plain, empty]}


LEAVING = [
    of_input,
    two_of_one_input,
    of_a_parameter,
    written_without_gradients,
    in_a_module,
    swapped_in,
    modules_of_existing_tensors,
]


def after_backward(function: Any, grad: bool) -> Any:
    x = given().requires_grad_(grad)
    existing.grad = None
    results = function(x)
    tensors = [one for one in pytree.tree_leaves(results) if isinstance(one, torch.Tensor)]
    for one in tensors:
        if one.requires_grad:
            one.sum().backward(retain_graph=True)
    return results, x, existing.grad


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", LEAVING)
def test_those_of_inputs_leave_the_graph(program: Any, backend: str, grad: bool) -> None:
    stator.reset()
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        found, expected = after_backward(compiled, grad), after_backward(program, grad)
        assert_same(found, expected, BY_BACKEND[backend])


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_of_an_input_shares_its_memory(backend: str) -> None:
    compiled = stator.compile(of_input, backend=backend, fullgraph=True)
    x = given()
    weight, again = compiled(x)[1], compiled(x)[1]
    assert type(weight) is nn.Parameter and weight is not again
    assert weight.data_ptr() == again.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_one_input_twice(backend: str) -> None:
    """A write to the parameter shows in another input of the same memory."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        weight = nn.Parameter(x)
        with torch.no_grad():
            weight.add_(1)
        return weight * y, weight

    compiled = stator.compile(program, backend=backend)
    for other in (lambda x: x + 1, lambda x: x, lambda x: x[:]):
        x, y = given(), given()
        assert_same(compiled(x, other(x)), program(y, other(y)))


def test_one_of_an_input_behind_a_break() -> None:
    def program(x: torch.Tensor) -> Any:
        weight = nn.Parameter(x)
        y = weight * 2
        torch._dynamo.graph_break()
        return y * weight, weight

    for function in (stator.compile(program, backend="aot_eager"), program):
        result, weight = function(given())
        result.sum().backward()
        assert torch.equal(weight.grad, given() * 4)


def test_gradients_cannot_be_switched_off_for_one_of_an_input() -> None:
    program = lambda x: nn.Parameter(x).requires_grad_(False) * 2  # noqa: E731
    with pytest.raises(stator.Unsupported, match="requires_grad_"):
        stator.compile(program, backend="eager", fullgraph=True)(given())
