"""Tensors of the program's own classes: captured through `__torch_function__`, with eager's results and classes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differential import BY_BACKEND, ROUNDED, check, corpus
from torch import nn
from torch.nn.attention.bias import causal_lower_right

import stator

programs, program = corpus()


class Plain(torch.Tensor):
    pass


class Scaled(torch.Tensor):
    """Changes two functions, and has an attribute, a method and a property."""

    scale: float

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.mul:
            return made + 1
        if func is torch.add:
            with torch._C.DisableTorchFunctionSubclass():
                return torch.add(*args) * 3
        return made

    def doubled(self) -> Any:
        return self * 2

    @property
    def half(self) -> Any:
        return self / 2


class Unwrapping(torch.Tensor):
    """Takes the class off its arguments itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*_unwrapped(args), **(kwargs or {}))
        return made.sin() if func is torch.Tensor.add else made


def _unwrapped(value: Any) -> Any:
    if isinstance(value, Unwrapping):
        return value.as_subclass(torch.Tensor)
    return tuple(map(_unwrapped, value)) if type(value) is tuple else value


class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


class Telling(Plain):
    """Returns what it is told."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func.__name__, [one.__name__ for one in types], len(args), kwargs


def given(kind: Any, requires_grad: bool = False) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(3, 3).as_subclass(kind), torch.randn(3, 3)
    with torch._C.DisableTorchFunctionSubclass():
        return x.requires_grad_(requires_grad), y


@program()
def operators(x: Any, y: Any) -> Any:
    return x + y, y + x, 1 - x, x * 2, x / y, 2 / x, x @ y, -x, abs(x), x > 0, x == y, y < x, x**2, x % 2


@program()
def functions(x: Any, y: Any) -> Any:
    pooled = F.adaptive_avg_pool2d(x[None], 1), F.gelu(x), F.softmax(x, -1), F.dropout(x, 0.5, False)
    return torch.add(x, y), torch.relu(x), torch.stack((y, x)), x.sum(0), x.max(0), x.split(2), *pooled


@program()
def attributes(x: Any, y: Any) -> Any:
    facts = x.shape, x.dtype, x.ndim, x.size(0), x.device, x.requires_grad, x.is_leaf, len(x)
    classes = type(x), x.__class__, isinstance(x, torch.Tensor), isinstance(x, Plain), torch.is_tensor(x)
    return x.T, *facts, *classes


@program()
def items(x: Any, y: Any) -> Any:
    return x[0], x[:, 1], x[..., None], y[0], [row * 2 for row in x], x.detach(), x.clone(), x.new_ones(2)


@program()
def changes(x: Any, y: Any) -> Any:
    z = x * 2
    same = z.add_(y)
    z[0] = 1
    y[1] = x[1].detach()
    z += 1
    y.mul_(2).add_(x.detach())
    return z, same is z, y, torch.add(y, y, out=y) is y


@program()
def made_inside(x: Any, y: Any) -> Any:
    first, second, third = y.as_subclass(type(x)), type(x)(y), torch.Tensor._make_subclass(type(x), y)
    first.tag, second.other = "a", first
    return first + second, third * 2, first, second


@program()
def without_overrides(x: Any, y: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        first = x + y, x.relu()
    with torch._C.DisableTorchFunction():
        second = torch.mul(x, y)
    called = torch._C._disabled_torch_function_impl(torch.add, (), (x, y), {"alpha": 2})
    return *first, second, called, x + 1, torch.overrides.has_torch_function((x,))


@pytest.mark.each_pair
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", [Plain, Scaled, Unwrapping, Silent])
@pytest.mark.parametrize("program", programs)
def test_inputs_of_a_class(program: Any, kind: Any, backend: str) -> None:
    differentiable = program.function is not changes
    make = lambda: given(kind, differentiable)  # noqa: E731
    # gradients of an input that several operators read are summed in another order
    tolerance = ROUNDED if backend == "eager" else BY_BACKEND[backend]
    check(
        program.function,
        make=make,
        backend=backend,
        fullgraph=True,
        gradients=differentiable,
        tolerance=tolerance,
    )


@pytest.mark.parametrize("kind", [Refusing, Telling])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: 2 / x,
        lambda x, y: y < x,
        lambda x, y: y == x,
        lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: y.add(x),
        lambda x, y: F.relu(x),
        lambda x, y: F.linear(y, x),
        lambda x, y: torch.special.exp2(x),
        lambda x, y: x.T,
        lambda x, y: x[0],
        lambda x, y: -x,
        lambda x, y: torch.cat([y, x]),
        lambda x, y: y // x,
        lambda x, y: x.split(1),
        lambda x, y: y.add(y.as_subclass(Plain), alpha=x.as_subclass(Plain)) is None,
    ],
)
def test_the_override_hears_what_it_hears_in_eager(function: Any, kind: Any) -> None:
    def outcome(function: Any) -> Any:
        try:
            return function(*given(kind))
        except TypeError as error:
            return type(error), str(error)

    stator.reset()
    assert outcome(stator.compile(function, backend="eager", fullgraph=True)) == outcome(function)


class First(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (cls.__name__, [one.__name__ for one in types]) if Below in types or Other in types else NotImplemented


class Below(First):
    pass


class Other(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented if len(types) > 1 else "other"


@pytest.mark.parametrize("kinds", [(First, Below), (Below, First), (Other, First), (Other, Other), (Other, Below)])
@pytest.mark.parametrize(
    "call", [torch.add, torch.Tensor.mul, lambda x, y: F.cosine_similarity(x, y), F.pairwise_distance]
)
def test_several_classes(call: Any, kinds: Any) -> None:
    one, other = (torch.ones(2).as_subclass(kind) for kind in kinds)
    function = lambda x, y: call(x, y)  # noqa: E731
    stator.reset()
    assert stator.compile(function, backend="eager", fullgraph=True)(one, other) == function(one, other)


def test_own_attributes_and_methods() -> None:
    def function(x: Any, y: Any) -> Any:
        x.scale = x.scale + 1
        made = x.doubled() + x.half * x.scale
        made.scale = x.scale
        return made, x.grad

    def make() -> Any:
        x, y = given(Scaled)
        x.scale = 2.5
        return x, y

    check(function, make=make, fullgraph=True)


def test_another_class_or_method_compiles_anew() -> None:
    class Own(Plain):
        def twice(self) -> Any:
            return self * 2

    function: Callable[..., Any] = lambda x: x.twice() if hasattr(x, "twice") else x + 1  # noqa: E731
    stator.reset()
    compiled = stator.compile(function, backend="eager", fullgraph=True)
    for kind in (torch.Tensor, Plain, Own):
        made = compiled(torch.ones(2).as_subclass(kind))
        assert type(made) is kind and torch.equal(made, function(torch.ones(2).as_subclass(kind)))
    Own.twice = lambda self: self * 3  # type: ignore[method-assign]
    assert torch.equal(compiled(torch.ones(2).as_subclass(Own)), torch.full((2,), 3.0).as_subclass(Own))
    Own.__torch_function__ = classmethod(lambda *_: 7)  # type: ignore[method-assign, assignment]
    assert compiled(torch.ones(2).as_subclass(Own)) == 7


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", [Plain, Scaled])
def test_trained_parameters_and_buffers(kind: Any, backend: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(4, 4).as_subclass(kind))
            self.linear = nn.Linear(4, 4)
            self.register_buffer("mask", torch.ones(4).as_subclass(kind))

        def forward(self, x: torch.Tensor) -> Any:
            return (self.linear(x) @ self.weight).relu() * self.mask

    stator.reset()
    model, other = Model(), Model()
    compiled = stator.compile(other, backend=backend, fullgraph=True)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, other)]
    for _ in range(3):
        for one, optimizer in zip((model, compiled), optimizers, strict=True):
            made = one(torch.ones(2, 4))
            assert type(made) is kind
            optimizer.zero_grad()
            made.square().sum().backward()
            optimizer.step()
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        assert type(one) is type(same)
        torch.testing.assert_close(one.as_subclass(torch.Tensor), same.as_subclass(torch.Tensor))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(mode: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        first = x * y
        with torch.enable_grad():
            second = x * y
        return first, second, x.requires_grad, first.requires_grad, second.requires_grad

    x, y = given(Plain, True)
    stator.reset()
    compiled = stator.compile(function, backend="eager", fullgraph=True)
    with mode():
        found, expected = compiled(x, y), function(x, y)
    assert found[2:] == expected[2:] and [type(one) for one in found] == [type(one) for one in expected]
    if found[1].requires_grad:
        gradients = [torch.autograd.grad(made[1].sum(), x)[0] for made in (found, expected)]
        assert torch.equal(*gradients)


def test_a_break_inside_a_block_without_overrides() -> None:
    def function(x: Any, y: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            first = x + y
            stator.graph_break()
            second = x + y
        return first, second, x + y

    check(function, make=lambda: given(Plain))


class Object:
    """No tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func.__name__, len(args)


def test_objects_with_an_override() -> None:
    function = lambda x, one: (torch.add(x, one), torch.stack([x, one]), F.relu(one), x.add(one), x * 2)  # noqa: E731
    check(function, make=lambda: (torch.ones(2), Object()), fullgraph=True)


# ---- classes as libraries write them ----

inside, of_a_class = corpus()


def plain_numbers(kind: Any, **attributes: Any) -> Callable[[], Any]:
    def make() -> Any:
        made = torch.arange(4.0).view(2, 2).as_subclass(kind)
        vars(made).update(attributes)
        return made

    return make


class Quantized(nn.Parameter):
    """Carries its kind of quantization through operators."""

    def __new__(cls, data: Any, requires_grad: bool = False, quant: Any = None) -> Any:
        return torch.Tensor._make_subclass(cls, data, requires_grad)

    def __init__(self, *_: Any, quant: Any = None) -> None:
        self.quant = quant

    def as_tensor(self) -> Any:
        return torch.Tensor._make_subclass(torch.Tensor, self, self.requires_grad)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        quant = next((one.quant for one in args if isinstance(one, Quantized)), None)
        if isinstance(made, torch.Tensor):
            return cls(made, quant=quant)
        if isinstance(made, tuple | list):
            return type(made)([cls(one, quant=quant) if isinstance(one, torch.Tensor) else one for one in made])
        return made


@of_a_class(lambda: Quantized(torch.ones(2, 2), quant=4))
def a_parameter_with_a_constructor(x: Any) -> Any:
    return x + 1, x.as_tensor() * 2, x.split(1), (x * 2).quant, isinstance(x, nn.Parameter)


class WithMeta(torch.Tensor):
    """Copies its attributes to results."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        found = [one for one in args if isinstance(one, WithMeta)]
        if isinstance(made, WithMeta) and found:
            made.__dict__ = copy.copy(found[0].__dict__)
        return made


@of_a_class(plain_numbers(WithMeta, tag="a"))
def attributes_of_results(x: Any) -> Any:
    made = (x * 2).relu()
    made.other = made.tag * 2
    return made, x.sum().tag


class Sometimes(torch.Tensor):
    """Only some functions give the class, as in torchvision."""

    kept = {torch.Tensor.clone, torch.Tensor.to, torch.Tensor.T.__get__}

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, one) for one in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        return made.as_subclass(cls if func in cls.kept else torch.Tensor) if isinstance(made, torch.Tensor) else made


@of_a_class(plain_numbers(Sometimes))
def some_functions_keep_the_class(x: Any) -> Any:
    return x + 1, x.clone(), x.to(torch.float64), x.T, x.mul_(2), x.sum()


class Overriding(Plain):
    """Overrides methods of torch.Tensor, and calls them."""

    ndim = 10

    def to(self, *args: Any) -> Any:
        made = super().to(*args)
        made.size_before = getattr(self, "size_before", made.data.shape)
        return made

    @property
    def shape(self) -> Any:
        if not hasattr(self, "size_before"):
            self.size_before = self.size()
        return self.size_before

    def __add__(self, other: Any) -> Any:
        return super().__add__(other) * 2

    def __radd__(self, other: Any) -> str:
        return "reflected"

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) - 1

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name == "computed":
            return self * 3
        raise AttributeError(name)


@of_a_class(plain_numbers(Overriding))
def overridden_methods(x: Any) -> Any:
    facts = x.ndim, x.shape, bool(x), 1 + x, torch.ones(2, 2) + x, hasattr(x, "nothing")
    return *facts, x + 1, x[0], x.to("cpu").size_before, x.computed


class Bound(torch.Tensor):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@of_a_class(plain_numbers(Bound))
def an_override_that_is_no_class_method(x: Any) -> Any:
    return x + 1


@of_a_class(plain_numbers(Plain))
def made_from_a_tensor(x: Any) -> Any:
    return torch.tensor([1.0, 2.0]) + x, torch.as_tensor(x) is x, torch.zeros_like(x), x.new_zeros(2), torch.Tensor(x)


@of_a_class(plain_numbers(Plain))
def views_and_memory(x: Any) -> Any:
    view, plain = x.view(-1), x.as_subclass(torch.Tensor)
    view[0] = 7
    plain.add_(1)
    lower = torch.Tensor._make_subclass(Plain, plain)
    lower *= 2
    return view, plain, lower, x.detach().mul_(3)


@of_a_class(lambda: plain_numbers(Plain)().requires_grad_())
def derivatives(x: Any) -> Any:
    return torch.autograd.grad((x * x).sum(), x)


@of_a_class(plain_numbers(Plain))
def state_of_overrides(x: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        with torch._C.DisableTorchFunctionSubclass():
            x = x + 1
        inner = torch._C._is_torch_function_enabled(), x
    with torch._C.DisableTorchFunction():
        all_of_them = torch._C._is_torch_function_all_disabled()
    return inner, all_of_them, torch._C._is_torch_function_all_disabled(), torch._C._is_torch_function_enabled()


@of_a_class(lambda: torch.arange(4.0).view(1, 2, 2))
def a_mask_of_torch(x: Any) -> Any:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=causal_lower_right(2, 2))


@of_a_class(plain_numbers(Plain))
def modules_and_functions(x: Any) -> Any:
    attention = F.scaled_dot_product_attention(x[None], x[None], x[None])
    return attention, F.layer_norm(x, (2,)), F.max_pool1d(x[None], 2), F.mse_loss(x, x * 2), torch.linalg.norm(x)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", inside)
@pytest.mark.filterwarnings("ignore:Defining your")
def test_classes_of_libraries(program: Any, backend: str) -> None:
    check(program, backend=backend, fullgraph=True)


def test_an_error_of_the_override() -> None:
    class Raising(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise ValueError(func.__name__)

    def function(x: Any) -> Any:
        try:
            return x + 1
        except ValueError as error:
            return str(error)

    stator.reset()
    x = torch.ones(2).as_subclass(Raising)
    assert stator.compile(function, backend="eager", fullgraph=True)(x) == "add"
    with pytest.raises(ValueError, match="sin"):
        stator.compile(torch.sin, backend="eager", fullgraph=True)(x)


def test_hooks_of_an_input_run_in_a_backward_of_the_frame() -> None:
    function = lambda x: torch.autograd.grad((x * x).sum(), x)[0]  # noqa: E731

    def gradients(function: Any) -> Any:
        x = torch.ones(3).as_subclass(Plain).requires_grad_()
        first = function(x)
        x.register_hook(lambda gradient: gradient * 10)
        return first, function(x)

    stator.reset()
    found, expected = gradients(stator.compile(function, backend="eager")), gradients(function)
    assert all(map(torch.equal, found, expected))


def test_a_step_of_training_in_one_graph() -> None:
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    stator.reset()
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models]
    x, compiled = torch.randn(3, 4).as_subclass(Plain), stator.compile(step, fullgraph=True)
    for _ in range(2):
        expected, found = step(models[0], optimizers[0], x), compiled(models[1], optimizers[1], x)
        assert type(found) is Plain
        torch.testing.assert_close(found, expected)


class Items(list):
    """A list with an override, for which torch asks only where no list may stand."""

    __torch_function__ = Object.__torch_function__


def test_lists_with_an_override() -> None:
    function = lambda x, items: (torch.stack(items), torch.add(x, items))  # noqa: E731
    check(function, make=lambda: (torch.ones(2), Items([torch.ones(2)])))
